package worker

import (
	"testing"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/header"
	"github.com/weirlb/weir/lb/table"
)

// The first packet of a flow tells by which interface answers leave, and after a start a later packet of the
// client, from when on the answers have no next hop of before.
func TestArrivalOfAFlow(t *testing.T) {
	b := newBench(t)
	b.offer(nil, table.Pool{}, 1)
	request := from(false, header.ProtoTCP, 1000).build(t)
	know := func(want int) {
		t.Helper()
		n := 0
		b.lb.flows.Range(func(ref conntrack.Ref) bool {
			n++
			forward := ref
			if !ref.Forward() {
				forward = ref.Other()
			}
			if got := b.w.arrivals.of(forward.Other()); got != want || b.w.arrivals.of(forward) != 0 {
				t.Errorf("answers leave by interface %d, want %d; packets of the client by %d", got, want, b.w.arrivals.of(forward))
			}
			return true
		})
		if n != 1 {
			t.Errorf("%d flows", n)
		}
	}
	b.one(portClient, request, portServer)
	know(0)
	for range 2 {
		b.w.arrivals = NewArrivals(b.lb.flows)
		know(0)
		b.one(portClient, request, portServer)
		know(portClient + 1)
	}
	b.framesHome()
}
