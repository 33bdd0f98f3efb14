package conntrack

import "testing"

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
		if a, b, c := tab.EndpointFlows(f.EndpointNumber), tab.EndpointOpen(f.EndpointNumber), tab.FrontendOpen(f.FrontendNumber); a != flows || b != opened || c != opened {
			t.Errorf("%s: endpoint has %d flows, %d open, frontend %d open; want %d, %d, %d", when, a, b, c, flows, opened, opened)
		}
	}
	half := func(want uint32) {
		t.Helper()
		if n := tab.FrontendHalfOpen(f.FrontendNumber); n != want {
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
	talk(t, tab, r, 1+2*clientSettles, "< ACK")
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
	tab.SetNumbers(r, 5, 6)
	check("moved", 0, 0)
	if tab.EndpointOpen(5) != 1 || tab.FrontendOpen(6) != 1 {
		t.Errorf("moved to endpoint %d, frontend %d", tab.EndpointOpen(5), tab.FrontendOpen(6))
	}
	w.Delete(r)
	if tab.EndpointFlows(5) != 0 || tab.FrontendOpen(6) != 0 {
		t.Error("still counted after the move")
	}
	w.Offline()
}
