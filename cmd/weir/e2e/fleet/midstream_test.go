package fleet

import (
	"context"
	"errors"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/weirlb/weir/perf/netlab/patience"
)

const whileAway = "while the first node drains\n"

// moved are connections over both nodes, and packets of all of them after the first node was
// drained: some come to the second node, which does not know their connections.
func (b *bed) moved() (conns []net.Conn) {
	b.t.Helper()
	b.until(0, 1)
	for range 16 {
		conns = append(conns, b.connect(vip4), b.connect(vip6))
	}
	_, err := b.nodes[0].admin.DrainSelf(context.Background(), false)
	must(b.t, err)
	b.until(1)
	for _, c := range conns {
		_, err := c.Write([]byte(whileAway))
		must(b.t, err)
	}
	for deadline := time.Now().Add(patience.For(10 * time.Second)); ; time.Sleep(20 * time.Millisecond) {
		s, err := b.nodes[1].admin.Status(context.Background())
		must(b.t, err)
		if s.Drops["no-conntrack-entry"] > 0 {
			return conns
		}
		if time.Now().After(deadline) {
			b.t.Fatalf("no connection came to the second node: %v", s.Drops)
		}
	}
}

// Connections whose packets come to a node that has no entry for them are not reset: they go on
// when the packets come to the node with the entry again.
func TestWireConnectionsOutliveAShortDrain(t *testing.T) {
	b := newBed(t, 2, "{notReadySeconds: 0, timeoutSeconds: 0}")
	conns := b.moved()
	_, err := b.nodes[0].admin.DrainSelf(context.Background(), true)
	must(t, err)
	b.until(0, 1)
	for i, c := range conns {
		if err := echoed(c, whileAway); err != nil {
			t.Errorf("connection %d: %v", i, err)
		}
	}
}

// Connections that do not come back are reset when their silence is over. Those of the second
// node go on.
func TestWireMovedConnectionsAreResetAfterTheirSilence(t *testing.T) {
	b := newBedOf(t, 2, "{notReadySeconds: 0, timeoutSeconds: 0}", bgpSessions()+"\n  resetAfterSeconds: 1")
	resets := 0
	for i, c := range b.moved() {
		switch err := echoed(c, whileAway); {
		case errors.Is(err, syscall.ECONNRESET):
			resets++
		case err != nil:
			t.Errorf("connection %d is neither reset nor answered: %v", i, err)
		}
	}
	if resets == 0 {
		t.Error("no connection was reset")
	}
}
