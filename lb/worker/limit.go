package worker

import (
	"encoding/binary"
	"math/bits"
)

// The most packets that a worker makes by itself per second: RSTs for a whole
// Service that has just lost its endpoints, ICMP errors as Linux limits its own
// (net.ipv4.icmp_msgs_per_sec), and echo replies. The limits per source leave
// room for a gateway with many hosts behind it.
const (
	resetsPerSecond = 10000
	resetsPerSource = 1000
	errorsPerSecond = 1000
	errorsPerSource = 50
	echoesPerSecond = 1000
	echoesPerSource = 50
)

// source is the hash of packet p's source that the limits count by: of an IPv4
// address, or of the /64 that an IPv6 host may have all to itself.
func (w *Worker) source(p *pkt) uint64 {
	return w.sourceOf(w.frame(p)[p.L3:], p.Family)
}

func (w *Worker) sourceOf(ip []byte, family uint8) uint64 {
	v := binary.LittleEndian.Uint64(ip[8:])
	if family == 4 {
		v = uint64(binary.LittleEndian.Uint32(ip[12:]))
	}
	seed := w.conns.Seed()
	hi, lo := bits.Mul64(v^seed[0], seed[1]|1)
	return hi ^ lo
}
