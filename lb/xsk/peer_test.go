package xsk

import (
	"math"
	"sync/atomic"
	"testing"

	"pgregory.net/rapid"
)

// peer is the kernel behind a whole socket, played by the test: it takes
// frames off the fill ring, receives into some of them, sends, and completes.
type peer struct {
	s                    *Socket
	fill, done, rx, tx   *kernel
	receiving, sendingIn []uint64 // addresses that it has taken, as it got them
}

// newPeer makes a socket without a kernel; its rings begin at start.
func newPeer(umem *Umem, ringSize, start uint32) *peer {
	p := &peer{s: &Socket{umem: umem, group: &group{}, frameMask: umem.frameMask, fd: -1}}
	var fill, done, rx, tx indices
	fill, p.fill = newRing(2*ringSize, start)
	done, p.done = newRing(2*ringSize, start)
	rx, p.rx = newRing(ringSize, start)
	tx, p.tx = newRing(ringSize, start)
	for _, r := range []*indices{&fill, &done, &rx, &tx} {
		r.rejected = &p.s.rejected
	}
	p.s.fill = addrProducer{fill, make([]uint64, 2*ringSize)}
	p.s.completion = addrConsumer{done, make([]uint64, 2*ringSize)}
	p.s.rx = descConsumer{indices: rx, entries: make([]Desc, ringSize)}
	p.s.tx = descProducer{tx, make([]Desc, ringSize)}
	if err := umem.register(p.s); err != nil {
		panic(err)
	}
	return p
}

// takeFill takes a frame off the fill ring, to receive into.
func (p *peer) takeFill() bool {
	return p.fill.consume(func(at uint32) { p.receiving = append(p.receiving, p.s.fill.entries[at]) })
}

// deliver puts a descriptor on the receive ring.
func (p *peer) deliver(d Desc) bool {
	return p.rx.produce(func(at uint32) { p.s.rx.entries[at] = d })
}

// takeTx takes a descriptor off the transmit ring.
func (p *peer) takeTx() bool {
	return p.tx.consume(func(at uint32) { p.sendingIn = append(p.sendingIn, p.s.tx.entries[at].Addr) })
}

// complete puts an address on the completion ring.
func (p *peer) complete(addr uint64) bool {
	return p.done.produce(func(at uint32) { p.s.completion.entries[at] = addr })
}

// between calls f with the places of the entries that are on a ring.
func (k *kernel) between(f func(at uint32)) {
	for i := *k.consumer; i != *k.producer; i++ {
		f(i % k.size)
	}
}

// places calls note for every frame that the kernel has by way of the socket.
func (p *peer) places(note func(addr uint64, where string)) {
	p.fill.between(func(at uint32) { note(p.s.fill.entries[at], "fill ring") })
	p.rx.between(func(at uint32) { note(p.s.rx.entries[at].Addr, "receive ring") })
	p.tx.between(func(at uint32) { note(p.s.tx.entries[at].Addr, "transmit ring") })
	p.done.between(func(at uint32) { note(p.s.completion.entries[at], "completion ring") })
	for _, a := range p.receiving {
		note(a, "being received into")
	}
	for _, a := range p.sendingIn {
		note(a, "being sent")
	}
}

// censused is the owner's side: its free list and what it is working on.
type censused struct {
	umem  *Umem
	peers []*peer
	free  []uint64
	inUse []Desc
}

// check asserts that every frame is in one place, and that the owner table agrees.
func (c *censused) check(t interface{ Fatalf(string, ...any) }) {
	seen := map[uint64]string{}
	note := func(addr uint64, where string, m ownerID) {
		f := addr >> c.umem.shift
		if other, twice := seen[f]; twice {
			t.Fatalf("frame %d is in two places: %s and %s", f, other, where)
		}
		seen[f] = where
		if got := c.umem.owners[f] &^ forTransmit; got != m {
			t.Fatalf("frame %d (%s) is noted as socket %d's", f, where, got>>1)
		}
	}
	for _, a := range c.free {
		note(a, "free", 0)
	}
	for _, d := range c.inUse {
		note(d.Addr, "in use", 0)
	}
	for _, p := range c.peers {
		p.places(func(addr uint64, where string) { note(addr, where, p.s.owner) })
	}
	if len(seen) != c.umem.Frames() {
		t.Fatalf("%d frames accounted for, of %d", len(seen), c.umem.Frames())
	}
}

func newCensused(t *rapid.T, frames int) *censused {
	umem, err := NewUmem(frames, 2048)
	if err != nil {
		t.Fatalf("%v", err)
	}
	c := &censused{umem: umem}
	start := rapid.SampledFrom([]uint32{0, math.MaxUint32 - 20, math.MaxUint32 - 300}).Draw(t, "start")
	for range 2 {
		c.peers = append(c.peers, newPeer(umem, 16, start))
	}
	for i := range frames {
		c.free = append(c.free, umem.Addr(i))
	}
	return c
}

// steps are what owner and kernel do when both behave.
func (c *censused) steps() map[string]func(*rapid.T) {
	pick := func(t *rapid.T) *peer { return c.peers[rapid.IntRange(0, len(c.peers)-1).Draw(t, "socket")] }
	many := func(t *rapid.T) int { return rapid.IntRange(1, 40).Draw(t, "n") }
	return map[string]func(*rapid.T){
		"fill": func(t *rapid.T) {
			n := min(many(t), len(c.free))
			n = pick(t).s.Fill(c.free[:n])
			c.free = c.free[n:]
		},
		"receive": func(t *rapid.T) {
			out := make([]Desc, 64)
			c.inUse = append(c.inUse, out[:pick(t).s.Receive(out)]...)
		},
		"transmit": func(t *rapid.T) {
			n := pick(t).s.Transmit(c.inUse[:min(many(t), len(c.inUse))])
			c.inUse = c.inUse[n:]
		},
		"drop": func(t *rapid.T) {
			for range min(many(t), len(c.inUse)) {
				c.free = append(c.free, c.umem.Base(c.inUse[0].Addr))
				c.inUse = c.inUse[1:]
			}
		},
		"complete": func(t *rapid.T) {
			out := make([]uint64, many(t))
			c.free = append(c.free, out[:pick(t).s.Complete(out)]...)
		},
		"kernel takes frames": func(t *rapid.T) {
			for p, n := pick(t), many(t); n > 0 && p.takeFill(); n-- {
			}
		},
		"kernel receives": func(t *rapid.T) {
			p := pick(t)
			for n := many(t); n > 0 && len(p.receiving) > 0; n-- {
				if !p.deliver(Desc{Addr: c.umem.Base(p.receiving[0]) + Headroom, Len: 60}) {
					break
				}
				p.receiving = p.receiving[1:]
			}
		},
		"kernel sends": func(t *rapid.T) {
			for p, n := pick(t), many(t); n > 0 && p.takeTx(); n-- {
			}
		},
		"kernel completes": func(t *rapid.T) {
			p := pick(t)
			for n := many(t); n > 0 && len(p.sendingIn) > 0 && p.complete(p.sendingIn[0]); n-- {
				p.sendingIn = p.sendingIn[1:]
			}
		},
		"close and reclaim": func(t *rapid.T) {
			if rapid.IntRange(0, 9).Draw(t, "dice") > 0 {
				return
			}
			p := pick(t)
			c.free = c.umem.ReclaimAll(p.s, c.free)
			for i := range c.peers {
				if c.peers[i] == p {
					c.peers[i] = newPeer(c.umem, 16, math.MaxUint32-10)
				}
			}
		},
	}
}

// TestEveryFrameIsInOnePlace: whatever fits and does not fit on whichever ring,
// across the wrap of the indices, and after sockets were closed.
func TestEveryFrameIsInOnePlace(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := newCensused(t, 100)
		defer c.umem.Close()
		steps := c.steps()
		steps[""] = func(t *rapid.T) { c.check(t) }
		t.Repeat(steps)
		for _, p := range c.peers {
			if n := p.s.Rejected(); n > 0 {
				t.Fatalf("%d rejected of a kernel that behaves", n)
			}
		}
	})
}

// TestAPeerThatMisbehaves: addresses, lengths, chains and indices that cannot be
// never crash, never give a frame to two owners, and are counted.
func TestAPeerThatMisbehaves(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := newCensused(t, 100)
		defer c.umem.Close()
		steps := c.steps()
		lie := func(t *rapid.T) Desc {
			return Desc{
				Addr:    rapid.OneOf(rapid.Uint64(), rapid.Uint64Range(0, 100*2048+4096)).Draw(t, "addr"),
				Len:     rapid.OneOf(rapid.Uint32(), rapid.Uint32Range(0, 3000)).Draw(t, "len"),
				Options: rapid.SampledFrom([]uint32{0, Continued, math.MaxUint32}).Draw(t, "options"),
			}
		}
		steps["lies on the receive ring"] = func(t *rapid.T) { c.peers[0].deliver(lie(t)) }
		steps["lies on the completion ring"] = func(t *rapid.T) { c.peers[0].complete(lie(t).Addr) }
		steps["lies about an index"] = func(t *rapid.T) {
			p := c.peers[0]
			for _, at := range []*uint32{p.rx.producer, p.done.producer, p.fill.consumer, p.tx.consumer} {
				if rapid.IntRange(0, 3).Draw(t, "dice") == 0 {
					atomic.StoreUint32(at, rapid.Uint32().Draw(t, "index"))
				}
			}
		}
		steps[""] = func(t *rapid.T) { c.checkOwn(t) }
		t.Repeat(steps)
		c.peers[0].s.Outstanding()
	})
}

// checkOwn asserts of the owner's side alone that no frame is there twice or
// noted as the kernel's, and that descriptors lie in their frames.
func (c *censused) checkOwn(t *rapid.T) {
	seen := map[uint64]bool{}
	note := func(addr uint64) {
		f := addr >> c.umem.shift
		if f >= uint64(c.umem.Frames()) {
			t.Fatalf("address %#x outside of the umem", addr)
		}
		if seen[f] || c.umem.owners[f] != 0 {
			t.Fatalf("frame %d: twice %v, noted as %d", f, seen[f], c.umem.owners[f])
		}
		seen[f] = true
	}
	for _, a := range c.free {
		note(a)
	}
	for _, d := range c.inUse {
		note(d.Addr)
		if d.Len > 0 && (d.Addr&c.umem.offsetMask)+uint64(d.Len) > 2048 {
			t.Fatalf("descriptor %+v leaves its frame", d)
		}
	}
}

// BenchmarkForwardFrames is BenchmarkForward by way of sockets, which look at
// each descriptor and keep account of each frame.
func BenchmarkForwardFrames(b *testing.B) {
	const size, batch = 4096, 64
	umem, err := NewUmem(3*size, 0)
	if err != nil {
		b.Fatal(err)
	}
	defer umem.Close()
	p := newPeer(umem, size, 0)
	for i := range 2 * size {
		p.s.Fill([]uint64{umem.Addr(i)})
	}
	var descs [batch]Desc
	var addrs [batch]uint64
	b.ReportAllocs()
	for b.Loop() {
		for range batch { // the kernel receives into the next frames, in order
			at := *p.fill.consumer % p.fill.size
			p.s.rx.entries[*p.rx.producer%size] = Desc{Addr: p.s.fill.entries[at] + Headroom, Len: 60}
			*p.fill.consumer++
			*p.rx.producer++
		}
		n := p.s.Receive(descs[:])
		p.s.Transmit(descs[:n])
		for i := range n {
			p.s.completion.entries[(*p.done.producer)%p.done.size] = descs[i].Addr
			*p.done.producer++
		}
		*p.tx.consumer += uint32(n)
		n = p.s.Complete(addrs[:])
		p.s.Fill(addrs[:n])
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/batch, "ns/packet")
}
