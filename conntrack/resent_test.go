package conntrack

import (
	"strings"
	"testing"
)

// A SYN, SYN-ACK or FIN is known as one that came again by its sequence number.
func TestSegmentsThatCameAgainAreKnown(t *testing.T) {
	const open = "> SYN; < SYN,ACK seq 6999; > ACK seq 100 ack 7000"
	const closed = open + "; > FIN,ACK seq 100 ack 7000; < FIN,ACK seq 7000 ack 101; > ACK seq 101 ack 7001"
	for _, c := range []struct {
		packets string // before the last
		last    string
		again   bool
	}{
		{"> SYN", "> SYN seq 99", true},
		{"> SYN", "> SYN seq 5000", false},
		{"> SYN; > SYN seq 5000", "> SYN seq 5000", true},
		{"> SYN", "< SYN,ACK seq 6999 ack 100", false},
		{"> SYN; < SYN,ACK seq 6999", "> SYN seq 99", true},
		{"> SYN; < SYN,ACK seq 6999", "> SYN seq 5000", false},
		{"> SYN; < SYN,ACK seq 6999", "< SYN,ACK seq 6999 ack 100", true},
		{"> SYN; < SYN,ACK seq 6999", "> ACK seq 100 ack 7000", false},
		{open, "< SYN,ACK seq 6999 ack 100", true},
		{open, "> PSH,ACK seq 100 ack 7000 len 10", false},
		{open, "> FIN,ACK seq 100 ack 7000", false},
		{open + "; > FIN,ACK seq 100 ack 7000", "> FIN,ACK seq 100 ack 7000", true},
		{open + "; > FIN,ACK seq 100 ack 7000", "> ACK seq 101 ack 7000", false},
		{open + "; > FIN,ACK seq 100 ack 7000", "< FIN,ACK seq 7000 ack 101", false},
		{open + "; > FIN,ACK seq 100 ack 7000; < FIN,ACK seq 7000 ack 101", "< FIN,ACK seq 7000 ack 101", true},
		{closed, "< FIN,ACK seq 7000 ack 101", true}, // in TIME_WAIT: the last ACK was lost
		{closed, "> ACK seq 101 ack 7001", false},
		{"> SYN; < RST,ACK seq 0 ack 100", "> SYN seq 99", false}, // asks for a new connection
	} {
		tab := openHeap(t, Config{MaxFlows: 16, Workers: 1, MaxEndpoints: 8})
		tab.Worker(0).Online()
		r := mustCreate(t, tab.Worker(0), oldFlow(1))
		talk(t, tab, r, 5, strings.Split(c.packets, ";")...)
		if g, _ := segment(t, tab, r, 5, c.last); g.Resent != c.again {
			t.Errorf("%s; %s: came again: %t", c.packets, c.last, g.Resent)
		}
	}
}
