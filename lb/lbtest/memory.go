// Package lbtest has queues in memory, for tests and benchmarks of the packet path.
package lbtest

import "github.com/weirlb/weir/lb/xsk"

// Memory is a worker.Queue without a kernel: it receives the descriptors in In and
// appends those that it transmits to Out.
type Memory struct {
	In   []xsk.Desc // received next, from the front
	Out  []xsk.Desc // transmitted; Complete takes frames from Done
	Done []uint64
	// Empty holds the frames of the fill ring.
	Empty []uint64
	Room  int // how many descriptors Transmit takes until Complete; 0: no limit
	Kicks int
	// KickError is what Kick says.
	KickError error
}

// Receive implements Queue.
func (m *Memory) Receive(out []xsk.Desc) int {
	n := copy(out, m.In)
	for n > 0 && out[n-1].Options&xsk.Continued != 0 {
		n--
	}
	m.In = m.In[:copy(m.In, m.In[n:])]
	return n
}

// Pending implements Queue.
func (m *Memory) Pending() int { return len(m.In) }

// Fill implements Queue.
func (m *Memory) Fill(addrs []uint64) int {
	m.Empty = append(m.Empty, addrs...)
	return len(addrs)
}

// Transmit implements Queue.
func (m *Memory) Transmit(descs []xsk.Desc) int {
	n := len(descs)
	if m.Room > 0 {
		n = min(n, m.Room-len(m.Done))
	}
	for n > 0 && descs[n-1].Options&xsk.Continued != 0 {
		n--
	}
	m.Out = append(m.Out, descs[:n]...)
	for _, d := range descs[:n] {
		m.Done = append(m.Done, d.Addr)
	}
	return n
}

// Kick implements Queue.
func (m *Memory) Kick() error { m.Kicks++; return m.KickError }

// Complete implements Queue.
func (m *Memory) Complete(out []uint64) int {
	n := copy(out, m.Done)
	m.Done = m.Done[:copy(m.Done, m.Done[n:])]
	return n
}
