package worker

import (
	"encoding/binary"
	"sync/atomic"
)

// Samples of dropped packets. A worker keeps the last packets of each reason: the first
// bytes at the time of the drop. It takes at most a few per reason and tick, so that a
// flood costs a look at a word per packet.
const (
	samplesKept    = 64 // per reason and worker
	samplesPerTick = 4
	sampleWords    = 10 // of 8 bytes: Ethernet, tags, IPv6 and ports
)

// DropSample is a dropped packet.
type DropSample struct {
	Reason Drop
	Worker int
	Number uint64 // counts the samples of the reason and worker
	Tick   uint32 // when, as conntrack.Table.Tick counts
	Port   int    // number of the port by which it came
	Size   int    // of the packet, in bytes
	Data   []byte // the first bytes, from the Ethernet header on
}

// sample is a DropSample as the worker writes it. Readers see it whole or not at all:
// sequence is odd while it is written.
type sample struct {
	sequence atomic.Uint64
	meta     atomic.Uint64 // tick, size, port: 32, 24 and 8 bits
	data     [sampleWords]atomic.Uint64
	length   atomic.Uint64 // of data, in bytes
}

// samples are those of a reason. Only the worker reads and writes taken and tick.
type samples struct {
	next  atomic.Uint64 // how many were ever taken
	tick  uint32
	taken uint32 // in that tick
	ring  [samplesKept]sample
}

// due reports whether a packet that is dropped at a tick is to be kept: enough of the reason were
// not kept in this tick.
func (s *samples) due(tick uint32) bool { return s.tick != tick || s.taken < samplesPerTick }

// keep keeps packet p, which is dropped at a tick.
func (s *samples) keep(p *pkt, tick uint32) {
	if s.tick != tick {
		s.tick, s.taken = tick, 0
	}
	s.taken++
	n := s.next.Load()
	at := &s.ring[n%samplesKept]
	at.sequence.Store(2*n + 1)
	frame := p.data
	at.meta.Store(uint64(tick)<<32 | uint64(min(p.size, 1<<24-1))<<8 | uint64(uint8(p.in)))
	length := min(len(frame), 8*sampleWords)
	for j := 0; j < length/8; j++ {
		at.data[j].Store(binary.LittleEndian.Uint64(frame[8*j:]))
	}
	if rest := length % 8; rest > 0 {
		var last [8]byte
		copy(last[:], frame[length-rest:length])
		at.data[length/8].Store(binary.LittleEndian.Uint64(last[:]))
	}
	at.length.Store(uint64(length))
	at.sequence.Store(2*n + 2)
	s.next.Store(n + 1)
}

func (s *samples) read(out []DropSample, reason Drop) []DropSample {
	n := s.next.Load()
	first := uint64(0)
	if n > samplesKept {
		first = n - samplesKept
	}
	for i := first; i < n; i++ {
		at := &s.ring[i%samplesKept]
		if at.sequence.Load() != 2*i+2 {
			continue
		}
		meta, data := at.meta.Load(), make([]byte, 8*sampleWords)
		for j := range at.data {
			binary.LittleEndian.PutUint64(data[8*j:], at.data[j].Load())
		}
		length := min(at.length.Load(), uint64(len(data)))
		if at.sequence.Load() != 2*i+2 {
			continue
		}
		out = append(out, DropSample{
			Reason: reason, Number: i, Tick: uint32(meta >> 32), Size: int(meta >> 8 & (1<<24 - 1)),
			Port: int(uint8(meta)), Data: data[:length],
		})
	}
	return out
}
