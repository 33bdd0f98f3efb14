package xsk_test

import (
	"log"

	"github.com/weirlb/weir/lb/xsk"
)

// The loop of a worker that sends every packet back to where it came from. The
// steering program must give packets to the socket.
func Example() {
	umem, err := xsk.NewUmem(8192, xsk.FrameSize)
	if err != nil {
		log.Fatal(err)
	}
	s, err := xsk.Open(umem, xsk.Config{IfIndex: 2, Queue: 0})
	if err != nil {
		log.Fatal(err)
	}
	free := make([]uint64, 0, umem.Frames())
	for i := range umem.Frames() {
		free = append(free, umem.Addr(i))
	}
	var descs [64]xsk.Desc
	var done [64]uint64
	for {
		n := s.Fill(free) // takes from the front
		free = free[:copy(free, free[n:])]

		n = s.Receive(descs[:])
		for _, d := range descs[:n] {
			mac := umem.Data(d)[:12]
			for i := range 6 {
				mac[i], mac[i+6] = mac[i+6], mac[i]
			}
		}
		sent := s.Transmit(descs[:n])
		for _, d := range descs[sent:n] {
			free = append(free, umem.Base(d.Addr)) // the ring is full: dropped
		}
		if err := s.Kick(); err != nil {
			log.Fatal(err)
		}
		free = append(free, done[:s.Complete(done[:])]...)
	}
}
