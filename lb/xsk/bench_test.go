package xsk_test

import (
	"runtime"
	"testing"

	"github.com/weirlb/weir/lb/steer"
	"github.com/weirlb/weir/lb/xsk"
	"github.com/weirlb/weir/perf/netlab"
)

// BenchmarkTransmit sends batches of 64 small packets over a veth whose peer
// throws them away in XDP: the kernel's copy-mode path, with Weir's part in it.
func BenchmarkTransmit(b *testing.B) {
	w := newWire(b, netlab.LinkConfig{})
	s := w.open(xsk.Config{})
	packet, _ := w.frame(make([]byte, 18))
	const batch = 64
	var descs [batch]xsk.Desc
	var done [256]uint64
	free := make([]uint64, 0, 2048)
	for i := range cap(free) {
		free = append(free, w.umem.Base(w.place(firstTxFrame+i, packet).Addr))
	}
	w.drop()
	b.ReportAllocs()
	for b.Loop() {
		for i := range descs {
			descs[i] = xsk.Desc{Addr: free[len(free)-1] + xsk.Headroom, Len: uint32(len(packet))}
			free = free[:len(free)-1]
		}
		for sent := 0; sent < batch; {
			sent += s.Transmit(descs[sent:])
			must(b, s.Kick())
		}
		for len(free) < batch {
			n := s.Complete(done[:])
			if n == 0 {
				runtime.Gosched()
			}
			free = append(free, done[:n]...)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/batch, "ns/packet")
}

// drop makes the peer throw everything away as soon as it arrives: a steering
// program that gives all to a socket that has no frames.
func (w *wire) drop() {
	must(w, w.peer.Do(func() error {
		p, err := steer.Load(steer.Config{})
		if err != nil {
			return err
		}
		w.Cleanup(func() { p.Close(true) })
		if _, err := p.AttachInterface(steer.Interface{Index: w.far.Index, Mode: steer.Native, All: true, PinDir: w.TempDir()}); err != nil {
			return err
		}
		umem, err := xsk.NewUmem(64, 0)
		if err != nil {
			return err
		}
		s, err := xsk.Open(umem, xsk.Config{IfIndex: w.far.Index})
		if err != nil {
			return err
		}
		w.Cleanup(func() { s.Close(); umem.Close() })
		return p.SetSocket(0, 0, s.FD())
	}))
}
