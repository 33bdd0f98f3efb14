package worker

import (
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/header"
	"github.com/weirlb/weir/lb/lbtest"
	"github.com/weirlb/weir/lb/xsk"
)

// sharedMemory is a conntrack.Memory of which only its name is shared.
type sharedMemory struct{ t testing.TB }

func (m sharedMemory) Last() []byte { return nil }
func (m sharedMemory) Keep() error  { return nil }
func (m sharedMemory) Drop() error  { return nil }

func (m sharedMemory) Table(size int64) ([]byte, error) { return m.Index(size) }

func (m sharedMemory) Index(size int64) ([]byte, error) {
	b, err := unix.Mmap(-1, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	m.t.Cleanup(func() { unix.Munmap(b) })
	return b, err
}

// newSharedBench is a bench whose flow table others read.
func newSharedBench(t testing.TB) *bench {
	t.Helper()
	return newBenchWith(t, conntrack.Config{Workers: 1, Memory: sharedMemory{t}, NextHops: 1 << 12})
}

// isSettled reports whether others may forward packets of the request.
func (b *bench) isSettled(p packet) bool {
	b.t.Helper()
	key := conntrack.MakeKey(p.src, p.dst, p.proto)
	ref := b.w.conntrack.Lookup(b.lb.flows.Hash(&key), &key)
	return ref != 0 && b.lb.flows.NextHop(ref)>>32 != 0
}

// A flow that others may forward is settled after the worker has sent the packets that it has
// received. It is not settled while more of them wait: later packets would overtake them.
func TestSharedFlowIsSettledAfterItsPacketsHaveLeft(t *testing.T) {
	b := newSharedBench(t)
	req := request(false, header.ProtoUDP)
	q := &settledAt{Memory: b.q[portServer], settled: func() bool { return b.isSettled(req) }}
	b.w.ports[portServer].Queue = q
	for range batchSize + 1 {
		b.give(portClient, req.build(t))
	}
	for i, want := range []bool{false, true} {
		out := b.round()
		if got := b.isSettled(req); got != want {
			t.Errorf("round %d: %d packets sent, settled %v", i, len(out[portServer]), got)
		}
	}
	if q.early > 0 {
		t.Errorf("%d packets were sent when the flow was settled already", q.early)
	}
}

// A worker that is never done settles a flow when it has sent what waited at the packet that asked,
// whether others ask or not.
func TestSharedFlowIsSettledWhileOthersKeepTheWorkerBusy(t *testing.T) {
	const backlog = 5 * batchSize
	for _, othersAsk := range []bool{false, true} {
		b := newSharedBench(t)
		req, other, next := request(false, header.ProtoUDP), request(false, header.ProtoUDP), uint16(1)
		fill := func() {
			for len(b.q[portClient].In) < backlog {
				if othersAsk {
					next++
				}
				other.src = netip.AddrPortFrom(other.src.Addr(), 20000+next)
				b.give(portClient, other.build(t))
			}
		}
		b.give(portClient, req.build(t))
		for round := range backlog/batchSize - 1 {
			fill()
			if b.round(); b.isSettled(req) {
				t.Errorf("settled in round %d, before packets that came before it", round)
			}
		}
		fill()
		if b.round(); !b.isSettled(req) {
			t.Errorf("the flow is not settled by its first packet (others ask: %v)", othersAsk)
		}
	}
}

// A flow that has ended while it waited is not settled, nor is another in its place, also with the
// same tuple.
func TestSharedFlowThatEndsIsNotSettled(t *testing.T) {
	b := newSharedBench(t)
	req := request(false, header.ProtoUDP)
	for range 3 * batchSize {
		b.give(portClient, req.build(t))
	}
	b.round()
	key := conntrack.MakeKey(req.src, req.dst, req.proto)
	ref := b.w.conntrack.Lookup(b.lb.flows.Hash(&key), &key)
	waiting := &b.w.settling.waiting[b.w.settling.head%maxWaiting]
	if waiting.ref != ref || b.w.settling.head == b.w.settling.tail {
		t.Fatalf("entry %d waits, want %d", waiting.ref, ref)
	}
	earlier, ended := *waiting, *waiting
	earlier.generation--
	ended.key.W[4]++
	for _, w := range []*waitingSettlement{&earlier, &ended} {
		if w.settle(b.w.conns, b.w.conntrack); b.isSettled(req) {
			t.Error("a flow has the next hop of another")
		}
	}
	if waiting.settle(b.w.conns, b.w.conntrack); !b.isSettled(req) {
		t.Error("the flow is not settled")
	}
}

// settledAt counts the packets that are sent after a flow was settled.
type settledAt struct {
	*lbtest.Memory
	settled func() bool
	early   int
}

func (q *settledAt) Transmit(descs []xsk.Desc) int {
	if q.settled() {
		q.early += len(descs)
	}
	return q.Memory.Transmit(descs)
}
