package conntrack

import (
	"testing"

	"github.com/weirlb/weir/conntrack/flowstate"
)

// A FIN whose acknowledgment takes longer than a second ends the connection all the same:
// data before it is on its way, is lost and sent again, or waits for a slow receiver.
func TestAFINThatIsAcknowledgedLateIsNotForgotten(t *testing.T) {
	const second = TicksPerSecond
	type step struct {
		after   uint32
		packets []string
	}
	for _, c := range []struct {
		name  string
		steps []step
		state flowstate.State
	}{
		{"the receiver acknowledges the data before it", []step{
			{0, []string{"< ACK seq 7000 ack 100 len 60000", "< FIN,ACK seq 67000 ack 100"}},
			{second / 2, []string{"> ACK seq 100 ack 20000"}},
			{second, []string{"> ACK seq 100 ack 40000"}},
			{second, []string{"> ACK seq 100 ack 67001", "> FIN,ACK seq 100 ack 67001", "< ACK seq 67001 ack 101"}},
		}, flowstate.TimeWait},
		{"lost data is sent again", []step{
			{0, []string{"> ACK seq 100 ack 7000 len 1000", "> ACK seq 1100 ack 7000 len 1000", "> FIN,ACK seq 2100 ack 7000"}},
			{2 * second, []string{"> ACK seq 100 ack 7000 len 1000", "< ACK seq 7000 ack 2101"}},
			{0, []string{"< FIN,ACK seq 7000 ack 2101", "> ACK seq 2101 ack 7001"}},
		}, flowstate.TimeWait},
		{"a part is acknowledged late", []step{
			{0, []string{"> ACK seq 100 ack 7000 len 1000", "> ACK seq 1100 ack 7000 len 1000", "> FIN,ACK seq 2100 ack 7000"}},
			{2 * second, []string{"< ACK seq 7000 ack 1100", "< ACK seq 7000 ack 2101"}},
			{0, []string{"< FIN,ACK seq 7000 ack 2101", "> ACK seq 2101 ack 7001"}},
		}, flowstate.TimeWait},
	} {
		t.Run(c.name, func(t *testing.T) {
			tab := openHeap(t, Config{MaxFlows: 16, Workers: 1, MaxEndpoints: 8})
			w := tab.Worker(0)
			w.Online()
			r := mustCreate(t, w, oldFlow(1))
			tick := uint32(5)
			talk(t, tab, r, tick, handshakeDone...)
			tick += second
			for _, s := range c.steps {
				tick += s.after
				talk(t, tab, r, tick, s.packets...)
			}
			if got := tab.Conn(r).State(); got != c.state {
				t.Errorf("state %v, want %v", got, c.state)
			}
		})
	}
}
