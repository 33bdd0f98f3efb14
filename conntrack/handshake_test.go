package conntrack

import (
	"testing"

	"github.com/weirlb/weir/conntrack/flowstate"
)

// Of a tuple with several SYNs, true and forged ones, the SYN-ACK counts that the client
// acknowledges.
func TestTheACKSaysWhichHandshakeIsComplete(t *testing.T) {
	const (
		hidden   = "> SYN; < SYN,ACK seq 6999 ack 50001"                             // its SYN was hidden
		answered = "> SYN; < SYN,ACK seq 6999; > SYN seq 50000"                      // and a second SYN
		both     = answered + "; < SYN,ACK seq 90000 ack 50001"                      // both answered
		late     = "> SYN; > RST seq 100; > SYN seq 300; < SYN,ACK seq 6999 ack 100" // to the first SYN
	)
	for _, c := range []struct {
		name, packets string
		state         flowstate.State
	}{
		{"hidden", hidden, flowstate.SynSent},
		{"hidden, acknowledged", hidden + "; > ACK seq 50001 ack 7000", flowstate.Established},
		{"hidden, right number of the client alone", hidden + "; > ACK seq 50001 ack 7001", flowstate.SynSent},
		{"hidden, the other SYN reset", hidden + "; > RST seq 100", flowstate.Close},
		{"hidden, the other SYN reset, acknowledged", hidden + "; > RST seq 100; > ACK seq 50001 ack 7000", flowstate.Established},
		{"hidden, the other SYN refused, acknowledged", hidden + "; < RST,ACK seq 0 ack 100; > ACK seq 50001 ack 7000", flowstate.Established},
		{"late", late, flowstate.SynSent},
		{"late, right number of the client alone", late + "; > ACK seq 100 ack 5", flowstate.SynSent},
		{"late, acknowledged", late + "; > ACK seq 100 ack 7000", flowstate.Established},
		{"the endpoint gave up", both, flowstate.SynRecv},
		{"the endpoint gave up, second acknowledged", both + "; > ACK seq 50001 ack 90001", flowstate.Established},
		{"the endpoint gave up, first acknowledged", both + "; > ACK seq 100 ack 7000", flowstate.Established},
		{"the endpoint gave up, right numbers of the client alone", both + "; > ACK seq 100 ack 5; > ACK seq 50001 ack 5", flowstate.SynRecv},
		{"the endpoint gave up, challenge ACK", both + "; < ACK seq 90001 ack 50001", flowstate.SynRecv},
		// An endpoint takes a RST within its window in SYN_RECV, and its next number is close.
		{"reset in the window, challenge ACK", "> SYN; < SYN,ACK seq 6999; > RST seq 103; > SYN seq 199;" +
			"< SYN,ACK seq 7099 ack 200; < ACK seq 7100 ack 200", flowstate.SynRecv},
		{"ACK close to the SYN-ACK's number", "> SYN; < SYN,ACK seq 6999; > ACK seq 100 ack 7001", flowstate.SynRecv},
	} {
		t.Run(c.name, func(t *testing.T) { checkStates(t, c.packets, c.state, flowstate.Pass) })
	}
}

// After forged FINs of both sides that agree with each other, any segment of a connection
// that lives keeps it.
func TestAConnectionOutlivesForgedFINsOfBothSides(t *testing.T) {
	tab := openHeap(t, Config{MaxFlows: 16, Workers: 1, MaxEndpoints: 8})
	w := tab.Worker(0)
	w.Online()
	f := natFlow(1)
	f.Seq = 1 << 20
	r := mustCreate(t, w, f)
	talk(t, tab, r, 1, "> SYN seq 1048576", "< SYN,ACK seq 1555392 ack 1048577", "> ACK seq 1048577 ack 1555393",
		"< FIN,ACK seq 0 ack 341677", "> FIN,ACK seq 0 ack 1")
	talk(t, tab, r, 1, "> ACK seq 1048577 ack 1555393", "< ACK seq 1555393 ack 1048577")
	w.Offline()
	if n := tab.Sweep(3600*TicksPerSecond, 16); n != 0 {
		t.Error("forgotten after an hour")
	}
}
