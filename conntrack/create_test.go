package conntrack

import (
	"testing"

	"github.com/weirlb/weir/conntrack/flowstate"
	"github.com/weirlb/weir/conntrack/tcp"
)

// Create has noted the SYN: following it changes no word of the connection. The worker
// relies on that and does not follow it.
func TestTheSYNOfANewConnectionIsNoted(t *testing.T) {
	tab := openHeap(t, Config{MaxFlows: 16, Workers: 1, MaxEndpoints: 8})
	w := tab.Worker(0)
	w.Online()
	f := natFlow(1)
	f.Seq, f.TSval, f.HasTS, f.Tick = 1<<31-1, 7, true, 77
	r := mustCreate(t, w, f)
	before, entries := *tab.Conn(r), [2]Entry{*tab.Entry(r), *tab.Entry(r.Other())}
	if v := tab.TrackTCP(r, &tcp.Segment{Flags: tcp.FlagSYN, Seq: f.Seq}, f.Tick); v != flowstate.Pass {
		t.Errorf("verdict %v", v)
	}
	settle(tab, r)
	if after := *tab.Conn(r); after != before {
		t.Errorf("from %+v to %+v", before, after)
	}
	if after := [2]Entry{*tab.Entry(r), *tab.Entry(r.Other())}; after != entries {
		t.Errorf("from %+v to %+v", entries, after)
	}
}

// A connection with a known next hop is made as Settle would leave it: the client's
// datagrams take the fast path at once, and nothing else does.
func TestANewConnectionIsSettled(t *testing.T) {
	const hop = 5<<32 | 1500<<16 | 3
	for _, proto := range []uint8{ProtoTCP, ProtoUDP, ProtoSCTP} {
		for _, v6 := range []bool{false, true} {
			tab := openHeap(t, Config{MaxFlows: 16, Workers: 1, MaxEndpoints: 8})
			w := tab.Worker(0)
			w.Online()
			f := natFlow(1)
			if v6 {
				f = natFlow6(1)
			}
			f.Client.W[4] = f.Client.W[4]&^(0xff<<32) | uint64(proto)<<32
			f.NextHop = hop
			r := mustCreate(t, w, f)
			there, back := tab.NextHop(r), tab.NextHop(r.Other())
			if want := map[uint8]uint64{ProtoUDP: hop}[proto]; there != want || back != 0 {
				t.Errorf("protocol %d, IPv6 %v: next hops %#x, %#x", proto, v6, there, back)
			}
			if settleBy(tab, r, [2]uint64{hop, hop}); tab.NextHop(r) != there || tab.NextHop(r.Other()) != back {
				t.Errorf("protocol %d, IPv6 %v: Settle changes the next hops", proto, v6)
			}
		}
	}
}

// Two workers have looked up the same tuple, and found nothing. One connection comes of it, and
// the other attempt leaves neither port, nor count, nor entry behind.
func TestATupleThatWasLookedUpTwiceHasOneConnection(t *testing.T) {
	tab := openHeap(t, Config{MaxFlows: 16, Workers: 2, MaxEndpoints: 8})
	var flows [2]*NewFlow
	for i := range flows {
		w := tab.Worker(i)
		w.Online()
		flows[i] = natFlow(1)
		w.Prefetch(flows[i], tab.Hash(&flows[i].Client))
	}
	for i, f := range flows {
		tab.Worker(i).PickPort(f)
	}
	first, o := tab.Worker(0).Create(flows[0])
	if o != Created {
		t.Fatalf("outcome %v", o)
	}
	if r, o := tab.Worker(1).Create(flows[1]); o != Existed || r != first {
		t.Errorf("outcome %v, entry %d, want that of %d", o, r, first)
	}
	if n, m := tab.Flows(), tab.EndpointFlows(flows[0].EndpointID); n != 1 || m != 1 {
		t.Errorf("%d connections, %d of the endpoint", n, m)
	}
	live := 0
	for i := range tab.index.buckets {
		for s := range tab.index.buckets[i].slot {
			if tab.index.buckets[i].slot[s].Load() != 0 {
				live++
			}
		}
	}
	if live != 2 {
		t.Errorf("%d entries in the index", live)
	}
}
