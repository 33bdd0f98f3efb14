package e2e

import (
	"context"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/weirlb/weir/cmd/weir/api"
)

// dialedFrom is a connection from a port of the client's, which the caller closes.
func (f *fixture) dialedFrom(t *testing.T, from, to netip.AddrPort) net.Conn {
	t.Helper()
	var c net.Conn
	err := f.Client.Do(func() (err error) {
		d := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(from), Timeout: within}
		c, err = d.Dial("tcp", to.String())
		return err
	})
	must(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

// unused is a port of a client's that no connection has: those of other tests may have any.
func (f *fixture) unused(t *testing.T, client netip.Addr) netip.AddrPort {
	t.Helper()
	for {
		from := netip.AddrPortFrom(client, uint16(20000+rand.Uint32N(1000)))
		l, err := f.admin.Flows(inTime(t, within), 1, &api.FlowFilter{Client: from.String()})
		must(t, err)
		if len(l.Flows) == 0 {
			return from
		}
	}
}

// weir trace says of a packet what then happens to it: endpoint, SNAT port, interface and
// next hop of a new connection, its later packets in both directions, refusals, and packets
// that are the kernel's.
func TestWireATraceSaysWhatHappens(t *testing.T) {
	f := sharedFixture(t)
	trace := func(t *testing.T, q api.TraceQuery) *api.Trace {
		t.Helper()
		q.Protocol, q.TTL = "TCP", 64
		out, err := f.admin.Trace(context.Background(), &q)
		must(t, err)
		if out.Steering == "" {
			t.Fatalf("the steering program was not asked: %s", out.SteeringError)
		}
		return out
	}
	for _, s := range append(slices.Clone(kinds), toAll) { // the neighbors are known when toAll is traced
		bothFamilies(t, func(t *testing.T, six bool) {
			to := s.at(echoPort, six)
			probe := f.dialed(t, to)
			client := probe.LocalAddr().(*net.TCPAddr).AddrPort().Addr().Unmap()
			for range 3 {
				from := f.unused(t, client)
				said := trace(t, api.TraceQuery{Source: from, Destination: to})
				c := said.Connection
				if said.Verdict != "forward" || c == nil || c.Existing || said.Frontend.Service != "test/"+s.name || said.Interface != "eth0" {
					t.Fatalf("%s: traced %+v, connection %+v", s.name, said, c)
				}
				if l, err := f.admin.Flows(context.Background(), 10, &api.FlowFilter{Client: from.String()}); err != nil || len(l.Flows) != 0 {
					t.Fatalf("after the trace: %+v, %v", l, err)
				}
				conn := f.dialedFrom(t, from, to)
				echoesByte(t, conn)
				l, err := f.admin.Flows(context.Background(), 10, &api.FlowFilter{Client: from.String()})
				must(t, err)
				if len(l.Flows) != 1 {
					t.Fatalf("%d connections from %s", len(l.Flows), from)
				}
				was := l.Flows[0]
				snat := ""
				if was.SNAT.IsValid() {
					snat = was.SNAT.String()
				}
				if was.Endpoint.String() != c.Endpoint || snat != c.SNAT || was.Mode != c.Mode {
					t.Errorf("%s: traced to %s from %q by %s, was %s, %q, %s", s.name, c.Endpoint, c.SNAT, c.Mode, was.Endpoint, snat, was.Mode)
				}
				again := trace(t, api.TraceQuery{Source: from, Destination: to})
				if c := again.Connection; c == nil || !c.Existing || c.From != "client" || c.Endpoint != was.Endpoint.String() || again.Flags != "ack" {
					t.Errorf("%s: later packet traced %+v", s.name, again)
				}
				if was.SNAT.IsValid() {
					back := trace(t, api.TraceQuery{Source: was.Endpoint, Destination: was.SNAT})
					if c := back.Connection; back.Verdict != "forward" || c == nil || c.From != "endpoint" || back.Sent == nil || back.Sent.Destination != from.String() || back.Sent.Interface != "eth0" {
						t.Errorf("%s: answer traced %+v %+v", s.name, back, back.Sent)
					}
				}
				conn.Close()
			}
		})
	}
	client := f.unused(t, f.dialed(t, toAll.at(echoPort, false)).LocalAddr().(*net.TCPAddr).AddrPort().Addr().Unmap())
	refused := trace(t, api.TraceQuery{Source: client, Destination: toNothing.at(echoPort, false)})
	if refused.Verdict != "reply" || refused.Reason != "no-endpoint" || refused.Sent == nil || !strings.HasPrefix(refused.Sent.Answer, "TCP RST") {
		t.Errorf("without an endpoint: %+v %+v", refused, refused.Sent)
	}
	kernel := trace(t, api.TraceQuery{Source: client, Destination: netip.AddrPortFrom(toAll.at(echoPort, false).Addr(), 22)})
	if kernel.Verdict != "kernel" || kernel.Steering != "no-match" {
		t.Errorf("to no frontend: %+v", kernel)
	}
	if _, err := f.admin.Trace(context.Background(), &api.TraceQuery{Protocol: "TCP", TTL: 64, Source: client,
		Destination: toAll.at(echoPort, false), Interface: "nowhere"}); err == nil || !strings.Contains(err.Error(), "nowhere") {
		t.Errorf("by an interface that is not attached: %v", err)
	}
	out, err := f.command("trace", "--admin-socket", f.path("weir.sock"), "--src", client.String(), "--dst", toAll.at(echoPort, false).String()).CombinedOutput()
	if text := string(out); err != nil || !strings.Contains(text, "redirected to Weir") || !strings.Contains(text, "hash of the tuple (Maglev") || !strings.Contains(text, "chosen") {
		t.Errorf("weir trace: %v\n%s", err, text)
	} else {
		t.Logf("\n%s", text)
	}
}
