package xsk

import (
	"math"
	"testing"
)

func TestWhatTheKernelCannotMeanIsCounted(t *testing.T) {
	const size = FrameSize
	good := func(i uint64) Desc { return Desc{Addr: i*size + Headroom, Len: 60} }
	for name, c := range map[string]struct {
		deliver []Desc
		want    []uint32 // lengths received
	}{
		"sense":                      {[]Desc{good(0), good(1)}, []uint32{60, 60}},
		"outside of the umem":        {[]Desc{good(0), {Addr: 64 * size, Len: 60}, good(1)}, []uint32{60, 60}},
		"far outside":                {[]Desc{{Addr: math.MaxUint64, Len: 60}, good(0)}, []uint32{60}},
		"a frame that is Weir's":     {[]Desc{good(60), good(0)}, []uint32{60}},
		"a frame given twice":        {[]Desc{good(0), good(0), good(1)}, []uint32{60, 60}},
		"across the frame's end":     {[]Desc{{Addr: Headroom, Len: size}, good(1)}, []uint32{0, 60}},
		"at the frame's beginning":   {[]Desc{{Addr: 0, Len: 60}, good(1)}, []uint32{0, 60}},
		"a length beyond everything": {[]Desc{{Addr: Headroom, Len: math.MaxUint32}}, []uint32{0}},
		"a bad buffer in a packet": {[]Desc{{Addr: Headroom, Len: 60, Options: Continued},
			{Addr: math.MaxUint64, Len: 60, Options: Continued}, good(2), good(3)}, []uint32{0, 0, 60}},
	} {
		t.Run(name, func(t *testing.T) {
			umem, err := NewUmem(64, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer umem.Close()
			p := newPeer(umem, 16, 0)
			p.s.Fill([]uint64{0, size, 2 * size, 3 * size})
			for p.takeFill() {
			}
			for _, d := range c.deliver {
				p.deliver(d)
			}
			out := make([]Desc, 64)
			out = out[:p.s.Receive(out)]
			if len(out) != len(c.want) {
				t.Fatalf("received %+v, want lengths %v", out, c.want)
			}
			for i, d := range out {
				if d.Len != c.want[i] {
					t.Errorf("descriptor %d is %+v, want length %d", i, d, c.want[i])
				}
			}
			if got := p.s.Rejected(); (got > 0) != (name != "sense") {
				t.Errorf("%d counted", got)
			}
		})
	}
}

// A chain of more buffers than any packet has is taken in pieces without
// contents, up to its end, and what follows is received.
func TestAPacketWithoutAnEndDoesNotBlockTheRing(t *testing.T) {
	umem, err := NewUmem(256, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer umem.Close()
	p := newPeer(umem, 256, math.MaxUint32-50)
	for i := range 256 {
		p.s.Fill([]uint64{umem.Addr(i)})
	}
	for p.takeFill() {
	}
	for i := range 151 {
		d := Desc{Addr: umem.Addr(i) + Headroom, Len: 60, Options: Continued}
		if i >= 149 {
			d.Options = 0 // the end, and a packet of its own
		}
		p.deliver(d)
	}
	out, frames, whole := make([]Desc, 64), 0, 0
	for range 10 {
		n := p.s.Receive(out)
		for _, d := range out[:n] {
			if d.Len > 0 {
				whole++
			}
		}
		frames += n
	}
	if frames != 151 || whole != 1 || p.s.Rejected() != 1 {
		t.Errorf("%d frames, %d packets, %d counted", frames, whole, p.s.Rejected())
	}
}

func TestIndicesBeyondTheRingAreNotBelieved(t *testing.T) {
	umem, err := NewUmem(64, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer umem.Close()
	for _, lie := range []uint32{17, 1000, math.MaxUint32, 1 << 31} {
		p := newPeer(umem, 16, 0)
		for _, at := range []*uint32{p.rx.producer, p.done.producer, p.fill.consumer, p.tx.consumer} {
			*at = lie + 32
		}
		out := make([]Desc, 64)
		if n := p.s.Receive(out) + p.s.Complete(make([]uint64, 64)); n != 0 {
			t.Errorf("index %d: took %d", lie, n)
		}
		if n := p.s.Outstanding(); n > 16 {
			t.Errorf("index %d: %d outstanding", lie, n)
		}
		if p.s.FillFree(64) > 32 || p.s.Rejected() == 0 {
			t.Errorf("index %d: room for %d, %d counted", lie, p.s.FillFree(64), p.s.Rejected())
		}
	}
}
