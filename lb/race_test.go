package lb

import (
	"context"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/header"
)

// An endpoint may go while a round is under way, whose snapshot still offers
// it, and by a clock that is ahead of the round's.
func TestAnEndpointThatGoesDuringARoundCostsOneFlow(t *testing.T) {
	for name, grace := range map[string]uint32{"without grace": 0, "with grace": 160} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.w.goneTicks = grace
			b.give(portClient, request(false, header.ProtoUDP).build(t))
			b.w.beginRound()
			b.serve(netip.Addr{}, endpoint6)
			n, _ := b.lb.tables.EndpointNumber(netip.AddrPortFrom(endpoint4, 8080), header.ProtoUDP)
			if since, gone := b.lb.tables.Gone(n); !gone {
				t.Fatal("the endpoint is not gone")
			} else if grace > 0 {
				b.w.tick = since - 1
			}
			b.w.receive()
			b.w.endRound()
			if s := b.lb.flows.Stats(); s.Created != 1 {
				t.Errorf("%d flows made for one packet", s.Created)
			}
			if len(b.q[portServer].Out) != 1 {
				t.Errorf("%d packets sent (drops %v)", len(b.q[portServer].Out), b.drops())
			}
		})
	}
}

// claim stands in for a goroutine that has claimed the flow to end it (the state
// word of conntrack.Conn, behind Adj), and was then kept from taking it out of
// the index.
func claim(c *conntrack.Conn) (undo func()) {
	state := (*uint32)(unsafe.Add(unsafe.Pointer(c), unsafe.Sizeof(c.Adj)))
	was := atomic.SwapUint32(state, 0)
	return func() { atomic.StoreUint32(state, was) }
}

func TestAFlowThatIsBeingEndedIsNotWaitedFor(t *testing.T) {
	for _, proto := range []uint8{header.ProtoTCP, header.ProtoUDP} {
		b := newBench(t)
		f := request(false, proto).build(t)
		b.one(portClient, f, portServer)
		var conn *conntrack.Conn
		b.lb.flows.Range(func(r conntrack.Ref) bool { conn = b.lb.flows.Conn(r); return true })
		undo := claim(conn)
		b.one(portClient, f, -1)
		if b.drops()["no-flow"] != 1 {
			t.Errorf("protocol %d: drops %v", proto, b.drops())
		}
		undo()
		b.one(portClient, f, portServer)
		b.framesHome()
	}
}

// All datagrams of a batch leave the endpoint that is gone, not the first only.
func TestABatchLeavesAGoneEndpointAsOne(t *testing.T) {
	b := newBench(t)
	b.w.goneTicks = 0
	f := request(false, header.ProtoUDP).build(t)
	b.one(portClient, f, portServer)
	other := netip.MustParseAddr("203.0.113.9") // a blackhole: nothing is sent there
	b.serve(other, endpoint6)
	for range 3 {
		b.give(portClient, f)
	}
	if got := b.round(); len(got[portServer]) != 0 {
		t.Errorf("%d packets went to the endpoint that is gone", len(got[portServer]))
	}
	b.framesHome()
}

func TestAWorkerThatHasEndedHoldsNothing(t *testing.T) {
	b := newBench(t)
	b.give(portClient, request(false, header.ProtoUDP).build(t))
	ended := make(chan struct{})
	go func() { b.w.run(); close(ended) }()
	for b.w.shared.read().RxPackets == 0 {
		time.Sleep(time.Millisecond)
	}
	b.w.stop.Store(true)
	<-ended
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := b.lb.flows.Synchronize(ctx); err != nil {
		t.Errorf("flows can not be freed after the worker has ended: %v", err)
	}
}
