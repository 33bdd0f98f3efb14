package conntrack

import (
	"testing"

	"github.com/weirlb/weir/conntrack/flowstate"
)

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
	if got := tab.Conn(r).State(); got != flowstate.TimeWait {
		t.Errorf("state %v, want %v", got, flowstate.TimeWait)
	}
}

// A forged SYN-ACK shortens no silent connection, and is forgotten when an end speaks.
func TestAForgedSYNACKShortensNoSilentConnection(t *testing.T) {
	tab := openHeap(t, Config{MaxFlows: 16, Workers: 1, MaxEndpoints: 8})
	w := tab.Worker(0)
	w.Online()
	r := mustCreate(t, w, oldFlow(1))
	talk(t, tab, r, 5, handshakeDone...)
	talk(t, tab, r, 5+TicksPerSecond, "> ACK seq 100 ack 7000 len 10", "< ACK seq 7000 ack 110")

	const forged, hour = 60 * TicksPerSecond, 3600 * TicksPerSecond
	talk(t, tab, r, forged, "< SYN,ACK seq 900000000 ack 500000001")
	if expired := tab.Sweep(forged+3*hour, 1<<10); expired != 0 {
		t.Fatalf("%d connections expired after three hours, want none", expired)
	}

	const later = forged + 4*hour
	talk(t, tab, r, later, "> ACK seq 110 ack 7000 len 10", "< ACK seq 7000 ack 120")
	talk(t, tab, r, later+TicksPerSecond, "> ACK seq 120 ack 7000 len 10", "< ACK seq 7000 ack 130")
	c := tab.Conn(r)
	if !c.Steady(0) || !c.Steady(1) {
		t.Error("the connection stays on the slow path")
	}
	if got := c.State(); got != flowstate.Established {
		t.Errorf("state %v, want %v", got, flowstate.Established)
	}
}
