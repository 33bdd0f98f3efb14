package worker

// pipelineSeeds are programs that do each thing once: in every mode and family
// requests, answers, errors, fragments; pings, options, tags, several buffers;
// and what happens when endpoints, neighbors and time go.
func pipelineSeeds() [][]byte {
	var out [][]byte
	request := func(a, service, c, d byte, rest ...byte) []byte {
		return append([]byte{stepRequest, a, service, c, d}, append(rest, 0)...)
	}
	for n := range fuzzServices {
		s := byte(n)
		for six := range byte(2) {
			out = append(out, join([]byte{0},
				request(six, s, 0, 4), []byte{stepAnswer, 0, 0, 4, 0, 0}, []byte{stepServerError, 0, 0, 60, 0},
				request(six|2, s, 1, 0), []byte{stepAnswer, 0, 0, 0, 0, 0}, request(six|2, s|1<<4, 1, 5), []byte{stepAnswer, 0, 1 << 5, 5, 0, 0},
				[]byte{stepClientError, six, s, 0, 4, 0, 60, 0},
				request(six, s, 0, 8), []byte{stepServerError, 0, 66, 200, 0, stepServerError, 0, 66 | 0x80, 20, 0},
				[]byte{stepFragments, six | 4, s, 2, 7, 3, 0, 1, 0, 0, 0, 0}, []byte{stepFragments, six | 4, s, 3, 7, 3, 1, 2, 0, 0, 0, 0}))
		}
	}
	for six := range byte(2) {
		out = append(out,
			join([]byte{2}, request(six|1<<5, 0, 0, 5), request(six|2|1<<5, 0, 1, 0), request(six|1<<5, 3, 0, 5), request(six|1<<5, 2, 0, 5, 2)),
			join([]byte{4 | 16}, request(six|0x80, 0, 0, 4, 1<<3), []byte{stepAnswer, 0, 0, 4, 0, 0}, request(six|0x80, 4, 0, 4, 2<<3|1)),
			join([]byte{0}, request(six|0x80, 0, 0, 4, 1), request(six|0x80, 0, 0, 4, 2), request(six|0x80, 3, 0, 4, 3), request(six|0x80, 1, 0, 4, 5)),
			join([]byte{1}, request(six|2, 0|1<<4, 0, 4), request(six, 0, 12<<3, 4), request(six, 0, 13<<3, 4), request(six, 0, 15<<3, 4)),
			join([]byte{0}, []byte{stepPing, six | 2, 5, 0, stepPing, six | 2 | 4, 5, 1, stepPing, six, 5, 0}),
			join([]byte{0}, request(six|2, 9, 0, 0), []byte{stepTable, 9, stepTime, 4}, request(six|2, 9|1<<4, 0, 0), []byte{stepAnswer, 0, 0, 0, 0, 0}),
			join([]byte{0}, []byte{stepNeighbor, 3 + six}, request(six, 0, 0, 4), []byte{stepNeighbor, 6 + six}, request(six, 0, 0, 4), []byte{stepNeighbor, six}, request(six, 0, 0, 4)),
			join([]byte{0}, request(six|4, 3, 0, 17), request(six, 3, 0, 17), request(six|4, 9, 0, 6), request(six|4, 11, 0, 15), request(six|2|8, 11, 0, 0), request(six, 0, 0, 22)),
			join([]byte{0}, request(six, 0, 0, 5), []byte{stepMutate, 0, 1, 9, 1, 0}, []byte{stepMutate, 0, 4 | 2, 20, 1, 30, 2, 0}, []byte{stepMutate, 0, 8, 40, 0}),
			join([]byte{0}, request(six, 0, 0, 4), []byte{stepElsewhere, six, 0, 0, 4, 0}, []byte{stepElsewhere, six | 2, 0, 0, 4, 1 | 1<<2 | 1<<4, 0}),
			join([]byte{0}, request(six|4, 0, 0, 4), []byte{stepAnswerFragments, 0, 1, 7, 2, 1, 2, 0, 0, 0, 0}, []byte{stepFragments | 0x80, six | 4, 0, 0, 7, 2, 5, 3, 0, 0, 0, 0}),
		)
	}
	return out
}

func join(list ...[]byte) []byte {
	var out []byte
	for _, b := range list {
		out = append(out, b...)
	}
	return out
}
