package conntrack

import (
	"sync/atomic"
	"testing"

	"github.com/weirlb/weir/conntrack/flowstate"
	"github.com/weirlb/weir/conntrack/tcp"
)

// The first segment of a restored connection, however young, leaves its next-hop words as they
// are: the program of the process before still forwards by them at other interfaces.
func TestRestoredConnectionStaysSettledForTheProgramBefore(t *testing.T) {
	tab := openHeap(t, Config{MaxFlows: 64, Workers: 1, MaxEndpoints: 8})
	tab.nextHops = 1 << 12
	w := tab.Worker(0)
	w.Online()
	r := establish(t, tab, w, 1)
	c := tab.Conn(r)
	tab.Settle(r, aWord)
	before := tab.NextHop(r)
	if before>>32 == 0 {
		t.Fatal("the connection is not settled")
	}
	unconfirm(c, tab.Entry(r))
	client, endpoint, _ := c.numbers()
	tab.TrackTCP(r.Other(), &tcp.Segment{Flags: tcp.FlagACK, Seq: endpoint, Ack: client}, c.Created()+1)
	if s := atomic.LoadUint32(&c.state); s&flowstate.Unconfirmed != 0 {
		t.Fatalf("the connection is not confirmed: state %#x", s)
	}
	if got := tab.NextHop(r); got != before {
		t.Errorf("the next hop is %#x after the first segment, and was %#x", got, before)
	}
}
