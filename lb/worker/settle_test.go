package worker

import (
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

// A worker that is never done settles flows nevertheless.
func TestSharedFlowIsSettledWhileOthersKeepTheWorkerBusy(t *testing.T) {
	b := newSharedBench(t)
	req := request(false, header.ProtoUDP)
	for round := 0; !b.isSettled(req); round++ {
		if round > 2*maxBusySettles {
			t.Fatal("the flow is not settled")
		}
		for len(b.q[portClient].In) <= batchSize {
			b.give(portClient, req.build(t))
		}
		b.round()
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
