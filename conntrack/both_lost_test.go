package conntrack

import "testing"

// A client and an endpoint that have both lost a connection without a word open another
// with the tuple: its end is seen.
func TestAConnectionThatBothSidesHaveLostIsFollowedByAnother(t *testing.T) {
	tab := openHeap(t, Config{MaxFlows: 16, Workers: 1, MaxEndpoints: 8})
	w := tab.Worker(0)
	w.Online()
	r := mustCreate(t, w, oldFlow(1))
	talk(t, tab, r, 5, handshakeDone...)
	const later = 3600 * TicksPerSecond
	talk(t, tab, r, 5+TicksPerSecond, "> ACK seq 100 ack 7000 len 10", "< ACK seq 7000 ack 110")
	talk(t, tab, r, later, "> SYN seq 500000000")
	talk(t, tab, r, later, "< SYN,ACK seq 900000000 ack 500000001")
	talk(t, tab, r, later+1, "> ACK seq 500000001 ack 900000001", "> ACK seq 500000001 ack 900000001 len 100",
		"< ACK seq 900000001 ack 500000101")
	talk(t, tab, r, later+2, "> FIN,ACK seq 500000101 ack 900000001",
		"< FIN,ACK seq 900000001 ack 500000102", "> ACK seq 500000102 ack 900000002")
	if got := tab.Conn(r).State(); got != StateTimeWait {
		t.Errorf("state %v, want %v", got, StateTimeWait)
	}
}
