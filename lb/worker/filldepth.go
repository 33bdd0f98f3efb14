package worker

const (
	// minFill is how many frames a port has for receiving while packets come
	// as they are dealt with: as many as most drivers' rings hold.
	minFill = 1024
	// overloadRow is how many packets in a row, with no end of them in sight, say
	// that more are coming than can be dealt with: then more frames only make
	// each of them colder.
	overloadRow = 1 << 16
	// shrinkTicks is the time without a long run of packets after which a port has fewer
	// frames.
	shrinkTicks = secondTicks
)

// fillDepth decides how many frames a port gives the kernel to receive into.
// The kernel goes through them in turn, so that each packet is written to the
// frame that was used longest ago: the fewer there are, the sooner it comes round, and the
// likelier it is still in a cache. Measured on veth, that is 20 % of the cost of a packet
// between 512 and 4,096. But a worker that is kept from running for a millisecond needs a
// thousand of them. So their number doubles when packets have piled up, and halves after a
// while when they no longer do.
type fillDepth struct {
	want    int // 0: minFill
	fullRow int // packets received in consecutive full batches
	grew    uint32
	now     uint32
}

// level is the number of frames for a ring of the given length.
func (f *fillDepth) level(ring int) int { return min(max(f.want, minFill), ring) }

// received notes a batch of n packets.
func (f *fillDepth) received(n, ring int) {
	if n < batchSize {
		f.fullRow = 0
		return
	}
	f.fullRow += n
	switch level := f.level(ring); {
	case f.fullRow > overloadRow:
		f.want, f.fullRow = minFill, overloadRow
	case f.fullRow > level/2 && level < ring:
		f.want, f.grew = 2*level, f.now
	}
}

// shrinkFill lets those ports that had no long row for a while do with fewer
// frames. It is called once per tick.
func shrinkFill(ports []port, now uint32) {
	for i := range ports {
		f := &ports[i].fill
		f.now = now
		if f.want > minFill && f.now-f.grew > shrinkTicks {
			f.want, f.grew = f.want/2, f.now
		}
	}
}
