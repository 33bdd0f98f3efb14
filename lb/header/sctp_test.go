package header

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"math/rand/v2"
	"testing"
)

// sctpFrame is a frame with an SCTP packet of these bytes behind the ports.
func sctpFrame(t testing.TB, v6 bool, tag uint32, chunks []byte) []byte {
	f := spec{v6: v6, proto: ProtoUDP, payload: SCTPLen - UDPLen + len(chunks)}.build(t)
	var p Packet
	Parse(f, len(f), &p)
	l4 := f[p.L4:][:p.L4Len()]
	binary.BigEndian.PutUint32(l4[4:], tag)
	copy(l4[SCTPLen:], chunks)
	binary.LittleEndian.PutUint32(l4[8:], 0)
	binary.LittleEndian.PutUint32(l4[8:], crc32.Checksum(l4, crc32.MakeTable(crc32.Castagnoli)))
	if v6 {
		f[p.L3+6] = ProtoSCTP
		return f
	}
	ip := f[p.L3:]
	ip[9], ip[10], ip[11] = ProtoSCTP, 0, 0
	binary.LittleEndian.PutUint16(ip[10:], Checksum(0, ip[:IPv4Len]))
	return f
}

func chunk(typ, flags uint8, body ...byte) []byte {
	out := append([]byte{typ, flags, 0, byte(4 + len(body))}, body...)
	return append(out, make([]byte, (4-len(out)%4)%4)...)
}

// initChunk is an INIT with initiate tag 7 and these parameters.
func initChunk(params ...byte) []byte {
	return chunk(ChunkInit, 0, append([]byte{0, 0, 0, 7, 0, 1, 0, 0, 0, 1, 0, 1, 0, 0, 0, 1}, params...)...)
}

func TestSCTPIsParsed(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		f := sctpFrame(t, v6, 9, chunk(3, 0, 1, 2, 3, 4))
		p := mustParse(t, f)
		if p.Proto != ProtoSCTP || p.Flags != 3 || p.Partial {
			t.Errorf("%+v", p)
		}
		binary.LittleEndian.PutUint32(f[p.L4+8:], 0)
		if p := mustParse(t, f); !p.Partial {
			t.Error("a CRC of 0 is not taken for one to be completed")
		}
		for name, chunks := range map[string][]byte{"none": {}, "cut": {3, 0, 0}, "length 3": {3, 0, 0, 3}, "beyond the end": {3, 0, 0, 5}} {
			f := sctpFrame(t, v6, 9, chunks)
			if problem := Parse(f, len(f), &Packet{}); problem != BadTransport {
				t.Errorf("first chunk %s: problem %d", name, problem)
			}
		}
	}
}

func TestChunksAreRead(t *testing.T) {
	for name, c := range map[string]struct {
		chunks []byte
		want   Chunks
	}{
		"INIT":                  {initChunk(), Chunks{Types: 1 << 1, InitiateTag: 7}},
		"COOKIE ECHO and data":  {append(chunk(10, 0, 1, 2, 3), chunk(0, 3, 1)...), Chunks{Types: 1<<10 | 1}},
		"SACK and SHUTDOWN":     {append(chunk(3, 0, 1), chunk(7, 0, 0, 0, 0, 1)...), Chunks{Types: 1<<3 | 1<<7}},
		"ABORT":                 {chunk(6, 0), Chunks{Types: 1 << 6}},
		"ABORT, tag reflected":  {chunk(6, 1), Chunks{Types: 1 << 6, Reflected: true}},
		"nothing behind data":   {append(chunk(0, 3, 1), chunk(6, 0)...), Chunks{Types: 1}},
		"nothing behind I-DATA": {append(chunk(64, 3, 1), chunk(6, 0)...), Chunks{}},
		"unknown":               {append(chunk(200, 0, 1), chunk(11, 0)...), Chunks{Types: 1 << 11}},
	} {
		f := sctpFrame(t, false, 9, c.chunks)
		p := mustParse(t, f)
		if got := p.Chunks(f); got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}

func TestInitsAreJudged(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		plain := sctpFrame(t, v6, 0, initChunk())
		p := mustParse(t, plain)
		own, other := append([]byte{0, 5, 0, 8}, plain[p.L3+12:p.L3+16]...), []byte{0, 5, 0, 8, 192, 0, 2, 99}
		if v6 {
			own, other = append([]byte{0, 6, 0, 20}, plain[p.L3+8:p.L3+24]...), append([]byte{0, 6, 0, 20}, make([]byte, 16)...)
		}
		zeroTag := initChunk()
		zeroTag[7] = 0
		for name, c := range map[string]struct {
			tag           uint32
			chunks        []byte
			sound, single bool
		}{
			"plain":                  {0, initChunk(), true, true},
			"other parameters":       {0, initChunk(0x80, 0, 0, 4, 0, 12, 0, 6, 0, 5, 0, 0), true, true},
			"its own address":        {0, initChunk(own...), true, true},
			"another address":        {0, initChunk(other...), true, false},
			"its own and another":    {0, initChunk(append(bytes.Clone(own), other...)...), true, false},
			"an address cut short":   {0, initChunk(0, 5, 0, 6, 1, 2, 0, 0), true, false},
			"a host name":            {0, initChunk(0, 11, 0, 6, 'a', 0, 0, 0), true, false},
			"a verification tag":     {5, initChunk(), false, false},
			"no initiate tag":        {0, zeroTag, false, false},
			"another chunk behind":   {0, append(initChunk(), chunk(3, 0)...), false, false},
			"shorter than an INIT":   {0, chunk(ChunkInit, 0, 0, 0, 0, 7), false, false},
			"a parameter of 3 bytes": {0, initChunk(0, 5, 0, 3), false, false},
			"a parameter beyond":     {0, initChunk(0, 5, 0, 9, 1, 2, 3, 4), false, false},
			"half a parameter":       {0, initChunk(0, 5), false, false},
		} {
			f := sctpFrame(t, v6, c.tag, c.chunks)
			p := mustParse(t, f)
			if sound, single := p.Init(f); sound != c.sound || single != c.single {
				t.Errorf("%s, v6 %v: sound %v, single %v", name, v6, sound, single)
			}
		}
	}
}

func TestRefusalsOfSCTP(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		for name, c := range map[string]struct {
			tag    uint32
			chunks []byte
			want   []byte // tag and chunk, nil: not to be answered
		}{
			"INIT":              {0, initChunk(), []byte{0, 0, 0, 7, 6, 0, 0, 4}},
			"data":              {9, chunk(0, 3, 1, 2, 3), []byte{0, 0, 0, 9, 6, 1, 0, 4}},
			"COOKIE ECHO":       {9, chunk(10, 0, 1), []byte{0, 0, 0, 9, 6, 1, 0, 4}},
			"SHUTDOWN ACK":      {9, chunk(8, 0), []byte{0, 0, 0, 9, 14, 1, 0, 4}},
			"ABORT":             {9, chunk(6, 0), nil},
			"SACK and ABORT":    {9, append(chunk(3, 0, 1), chunk(6, 0)...), nil},
			"SHUTDOWN COMPLETE": {9, chunk(14, 0), nil},
			"ERROR":             {9, chunk(9, 0, 0, 3, 0, 4), nil},
			"COOKIE ACK":        {9, chunk(11, 0), nil},
		} {
			f := sctpFrame(t, v6, c.tag, c.chunks)
			was := bytes.Clone(f)
			p := mustParse(t, f)
			if p.Refusable(f) != (c.want != nil) {
				t.Errorf("%s: refusable %v", name, c.want == nil)
			}
			if c.want == nil {
				continue
			}
			f = f[:p.Refuse(f)]
			r := mustParse(t, f)
			l4 := f[r.L4:]
			if !bytes.Equal(append(bytes.Clone(l4[4:8]), l4[12:]...), c.want) || !bytes.Equal(l4[0:2], was[p.L4+2:p.L4+4]) || !bytes.Equal(l4[2:4], was[p.L4:p.L4+2]) {
				t.Errorf("%s: %x", name, l4)
			}
			if !crcHolds(f, &r) {
				t.Errorf("%s: wrong CRC", name)
			}
		}
	}
}

// crcHolds computes the CRC of the packet anew.
func crcHolds(f []byte, p *Packet) bool {
	l4 := bytes.Clone(f[p.L4:][:p.L4Len()])
	have := binary.LittleEndian.Uint32(l4[8:])
	binary.LittleEndian.PutUint32(l4[8:], 0)
	return crc32.Checksum(l4, crc32.MakeTable(crc32.Castagnoli)) == have
}

func TestCRCDeltaIsWhatNewPortsChange(t *testing.T) {
	for _, n := range []int{4, 5, 16, 1460, 2051, 2052, 2053, 9000, 65535} {
		b := make([]byte, n)
		for i := range b {
			b[i] = byte(rand.Uint32())
		}
		was := CRC(0, b)
		ports := rand.Uint32()
		binary.LittleEndian.PutUint32(b, binary.LittleEndian.Uint32(b)^ports)
		if got := was ^ CRCDelta(ports, n); got != CRC(0, b) {
			t.Errorf("%d bytes: %08x, want %08x", n, got, CRC(0, b))
		}
		if CRCDelta(0, n) != 0 {
			t.Errorf("%d bytes: the same ports change the CRC", n)
		}
	}
}

// FuzzSCTP holds that chunks are read inside the packet, and that a refusal of
// whatever was taken is itself one that is not refused.
func FuzzSCTP(f *testing.F) {
	for _, chunks := range [][]byte{initChunk(0, 5, 0, 8, 1, 2, 3, 4), append(chunk(10, 0, 1, 2), chunk(0, 3)...), chunk(6, 1), chunk(8, 0), {0, 0, 255, 255}} {
		f.Add(false, uint32(0), chunks)
		f.Add(true, uint32(9), chunks)
	}
	f.Fuzz(func(t *testing.T, v6 bool, tag uint32, chunks []byte) {
		if len(chunks) > 3000 {
			return
		}
		frame := sctpFrame(t, v6, tag, chunks)
		frame = append(frame, bytes.Repeat([]byte{ChunkAbort}, 8)...) // padding, not to be read
		var p Packet
		if Parse(frame, len(frame), &p) != OK {
			return
		}
		c := p.Chunks(frame)
		if !c.Has(p.Flags&15) && p.Flags < 16 {
			t.Fatalf("first chunk %d is not among %016b", p.Flags, c.Types)
		}
		if p.Flags == ChunkInit {
			if sound, single := p.Init(frame); single && !sound {
				t.Fatal("single without being sound")
			}
		}
		if !p.Refusable(frame) {
			return
		}
		frame = frame[:p.Refuse(frame)]
		var r Packet
		if problem := Parse(frame, len(frame), &r); problem != OK || r.Refusable(frame) || !crcHolds(frame, &r) {
			t.Fatalf("problem %d, refusal %x", problem, frame)
		}
	})
}
