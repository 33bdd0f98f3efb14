package conntrack

import (
	"runtime"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/weirlb/weir/conntrack/tcp"
)

func TestOpenConnectionsAreCounted(t *testing.T) {
	tab := openTest(t, Config{})
	w := tab.Worker(0)
	w.Online()
	f := natFlow(1)
	r, out := w.Create(f)
	if out != Created {
		t.Fatal(out)
	}
	check := func(when string, flows, opened uint32) {
		t.Helper()
		if a, b, c := tab.EndpointFlows(f.EndpointID), tab.EndpointOpen(f.EndpointID), tab.ServiceOpen(f.ServiceID); a != flows || b != opened || c != opened {
			t.Errorf("%s: endpoint has %d flows, %d open, frontend %d open; want %d, %d, %d", when, a, b, c, flows, opened, opened)
		}
	}
	half := func(want uint32) {
		t.Helper()
		if n := tab.ServiceHalfOpen(f.ServiceID); n != want {
			t.Errorf("%d are half-open, want %d", n, want)
		}
	}
	check("created", 1, 0)
	half(1)
	talk(t, tab, r, 1, "< SYN,ACK")
	half(1)
	talk(t, tab, r, 1, "> ACK")
	half(0)
	check("established", 1, 1)
	talk(t, tab, r, 1, "> RST")
	check("reset", 1, 0)
	talk(t, tab, r, 1+2*tcp.ClientSettles, "< ACK")
	check("the RST was forged", 1, 1)
	talk(t, tab, r, 3, "> RST")
	check("reset again", 1, 0)
	talk(t, tab, r, 4, "> SYN")
	half(1)
	w.Delete(r)
	check("deleted", 0, 0)
	half(0)
	r, _ = w.Create(f)
	talk(t, tab, r, 1, handshakeDone...)
	w.Delete(r)
	check("deleted while open", 0, 0)
	r, _ = w.Create(f)
	talk(t, tab, r, 1, handshakeDone...)
	tab.SetIDs(r, 5, 6)
	check("moved", 0, 0)
	if tab.EndpointOpen(5) != 1 || tab.ServiceOpen(6) != 1 {
		t.Errorf("moved to endpoint %d, frontend %d", tab.EndpointOpen(5), tab.ServiceOpen(6))
	}
	w.Delete(r)
	if tab.EndpointFlows(5) != 0 || tab.ServiceOpen(6) != 0 {
		t.Error("still counted after the move")
	}
	w.Offline()
}

func TestFailedHandshakesAreCounted(t *testing.T) {
	for name, tt := range map[string]struct {
		script []string // segments; the connection is deleted at the end
		want   uint64
	}{
		"no answer":                {nil, 1},
		"answered, never complete": {[]string{"< SYN,ACK"}, 1},
		"refused by the endpoint":  {[]string{"< RST,ACK"}, 1},
		"complete":                 {handshakeDone, 0},
		"complete, then reset":     {append(slices.Clone(handshakeDone), "> RST"), 0},
	} {
		t.Run(name, func(t *testing.T) {
			tab := openTest(t, Config{})
			w := tab.Worker(0)
			w.Online()
			defer w.Offline()
			f := natFlow(1)
			r, out := w.Create(f)
			if out != Created {
				t.Fatal(out)
			}
			talk(t, tab, r, 1, tt.script...)
			w.Delete(r)
			if got := tab.ServiceFailed(f.ServiceID); got != tt.want {
				t.Errorf("%d failed, want %d", got, tt.want)
			}
		})
	}
	if n := openTest(t, Config{}).ServiceFailed(NoID); n != 0 {
		t.Errorf("of a Service without a number: %d", n)
	}
}

// UDP flows follow their frontend to another Service while packets pass.
func TestCountersHoldWhileFlowsAreRenumbered(t *testing.T) {
	const flows = 30_000
	tab := openTest(t, Config{MaxFlows: 1 << 16})
	w := tab.Worker(0)
	w.Online()
	refs := make([]Ref, flows)
	for i := range refs {
		f := natFlow(i)
		f.Client, f.PortLo = MakeKey(client(i), vip, ProtoUDP), 1024
		refs[i] = mustCreate(t, w, f)
	}
	// Both come to each flow at the same time.
	var at [2]atomic.Int64
	meet := func(me, i int) {
		at[me].Store(int64(i) + 1)
		for at[1-me].Load() <= int64(i) {
			runtime.Gosched()
		}
	}
	done := make(chan bool)
	go func() {
		defer close(done)
		for i, r := range refs {
			meet(1, i)
			tab.SetIDs(r, 5, 6)
		}
	}()
	for i, r := range refs {
		meet(0, i)
		for range i % 64 {
			_ = tab.Conn(r).Created()
		}
		tab.TrackUDP(r.Other(), 1)
	}
	<-done
	for _, r := range refs {
		tab.TrackUDP(r.Other(), 1)
	}
	if half, open, at := tab.ServiceHalfOpen(6), tab.ServiceOpen(6), tab.EndpointOpen(5); half != 0 || open != flows || at != flows {
		t.Errorf("%d flows are half-open, %d open, %d of the endpoint's; want 0, %d, %[4]d", half, open, at, flows)
	}
	for _, r := range refs {
		w.Delete(r)
	}
	for n := range uint32(8) {
		if lower, upper := tab.endpoints.load(n); lower|upper != 0 {
			t.Errorf("endpoint %d still has %d flows, %d open", n, lower, upper)
		}
		if lower, upper := tab.services.load(n); lower|upper != 0 {
			t.Errorf("frontend %d still has %d flows half-open, %d open", n, lower, upper)
		}
	}
	w.Offline()
}
