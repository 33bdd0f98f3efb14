package worker

import (
	"net/netip"
	"testing"

	"github.com/weirlb/weir/lb/route"
)

func TestFragmentsWhoseFirstDoesNotComeExpire(t *testing.T) {
	for _, tt := range []struct {
		name string
		dst  netip.Addr
		in   int
		out  int
	}{
		{"to an address of frontends", empty4, portClient, -1},
		{"to the node's own address", node4, portClient, portHost},
		{"from the kernel", node4, portHost, -1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newBench(t)
			req := long(false)
			req.dst = ap(tt.dst, 80)
			f := cut(t, req.build(t), 5, pieces...)[2]
			b.one(tt.in, f, -1)
			later := func(ticks uint32) (out [3][][]byte) {
				b.w.tick += ticks
				b.w.releaseQueued()
				b.w.endRound()
				for i, q := range b.q {
					out[i] = make([][]byte, len(q.Out))
					q.Out = q.Out[:0]
				}
				return out
			}
			if out := later(fragQueueTicks - 1); len(out[portHost])+len(b.drops()) > 0 {
				t.Fatalf("before its time: %v", b.drops())
			}
			out := later(1)
			sent := tt.out >= 0 && len(out[tt.out]) == 1
			if dropped := b.drops()[DropFragmentExpired.String()] == 1; dropped == sent {
				t.Errorf("sent %v, drops %v", out, b.drops())
			}
			if len(b.w.fragQueue.list) != 0 || b.w.fragQueue.frames != 0 {
				t.Errorf("%d still waiting", len(b.w.fragQueue.list))
			}
			b.framesHome()
		})
	}
}

// Waiting is bounded, for each datagram and in all.
func TestWaitingFragmentsAreBounded(t *testing.T) {
	b := newBench(t)
	req := long(false).build(t)
	for n := range fragQueuePerDatagram + 5 {
		b.give(portClient, fragmentOf(t, req[:34], req[34:42], 1, 8+8*n, true))
	}
	b.round()
	b.round()
	if n := b.drops()[DropFragmentLimit.String()]; n != 5 {
		t.Errorf("%d of one datagram dropped, want 5", n)
	}
	for n := range fragQueueFrames {
		b.give(portClient, fragmentOf(t, req[:34], req[34:42], uint32(2+n), 8, true))
	}
	for range fragQueueFrames/batchSize + 1 {
		b.round()
	}
	if n := b.drops()[DropFragmentLimit.String()]; n != 5+fragQueuePerDatagram {
		t.Errorf("%d dropped in all, want %d", n, 5+fragQueuePerDatagram)
	}
	b.framesHome()
}

// Fragments whose first never comes do not keep those of others from waiting.
func TestForgedFragmentsDoNotKeepOthersFromWaiting(t *testing.T) {
	b := newBench(t)
	req := long(false)
	forged := req.build(t)
	flood := func(n int) {
		for i := range n {
			b.give(portClient, fragmentOf(t, forged[:34], forged[34:42], uint32(100+i), 8, true))
		}
		for range n/batchSize + 1 {
			b.round()
		}
	}
	flood(2 * fragQueueFrames)
	f := cut(t, req.build(t), 5, pieces...)
	for _, later := range f[1:] {
		b.one(portClient, later, -1)
	}
	flood(fragQueueFrames / 2)
	b.give(portClient, f[0])
	got := b.round()[portServer]
	got = append(got, b.round()[portServer]...)
	if len(got) != len(f) {
		t.Errorf("%d of %d fragments are sent on, drops %v", len(got), len(f), b.drops())
	}
	b.framesHome()
}

func TestFragmentsWaitForTheNeighborInOrder(t *testing.T) {
	b := newBench(t)
	b.lb.router.SetState(portServer, endpoint4, route.Resolving)
	req := long(false)
	for _, f := range cut(t, req.build(t), 5, pieces...) {
		b.one(portClient, f, -1)
	}
	b.framesHome()
	b.lb.router.SetState(portServer, endpoint4, route.Valid)
	got := b.round()[portServer]
	if len(got) == 0 {
		t.Fatalf("nothing was sent: %v", b.drops())
	}
	same(t, "to the endpoint", got, cut(t, toEndpoint(req, got[0]).build(t), identification(t, got[0]), pieces...))
	b.framesHome()
}
