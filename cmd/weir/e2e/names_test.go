package e2e

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/miekg/dns"

	"github.com/weirlb/weir/perf/netlab"
	"github.com/weirlb/weir/perf/netlab/workload"
)

// namedSlice has its endpoints by name; the port of echo is that of an SRV record.
const namedSlice = `---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {namespace: test, name: named-fqdn, labels: {kubernetes.io/service-name: named}}
addressType: FQDN
ports: [{name: http, port: 8080, protocol: TCP}, {name: echo, protocol: TCP}]
endpoints: [{addresses: [web.lab.example]}]
`

// directory answers A, AAAA and SRV questions for web.lab.example.
type directory struct {
	sync.Mutex
	addrs []netip.Addr
}

func (d *directory) set(list ...netip.Addr) {
	d.Lock()
	defer d.Unlock()
	d.addrs = list
}

// ServeDNS implements dns.Handler.
func (d *directory) ServeDNS(w dns.ResponseWriter, q *dns.Msg) {
	d.Lock()
	defer d.Unlock()
	m, h := new(dns.Msg).SetReply(q), dns.RR_Header{Name: q.Question[0].Name, Rrtype: q.Question[0].Qtype, Class: dns.ClassINET}
	for _, a := range d.addrs {
		if h.Rrtype == dns.TypeA && a.Is4() {
			m.Answer = append(m.Answer, &dns.A{Hdr: h, A: a.AsSlice()})
		} else if h.Rrtype == dns.TypeAAAA && a.Is6() {
			m.Answer = append(m.Answer, &dns.AAAA{Hdr: h, AAAA: a.AsSlice()})
		}
	}
	if h.Rrtype == dns.TypeSRV && h.Name == "_echo._tcp.web.lab.example." {
		m.Answer = append(m.Answer, &dns.SRV{Hdr: h, Port: echoTarget, Target: "web.lab.example."})
	}
	_ = w.WriteMsg(m)
}

// serveNames answers by UDP in a namespace until the function that is returned is called.
func serveNames(t *testing.T, n *netlab.Namespace, at string, d *directory) (end func()) {
	t.Helper()
	var c net.PacketConn
	c, err := n.ListenPacket("udp", at)
	must(t, err)
	started := make(chan struct{})
	s := &dns.Server{PacketConn: c, Handler: d, NotifyStartedFunc: func() { close(started) }}
	go func() { _ = s.ActivateAndServe() }()
	<-started
	end = sync.OnceFunc(func() { _ = s.Shutdown() })
	t.Cleanup(end)
	return end
}

// Endpoints follow the addresses of a name, connections stay at one that has gone, and a resolver that
// fails takes none away and is a problem, also for the next process. Addresses of the node are refused.
func TestWireEndpointsByName(t *testing.T) {
	t.Parallel()
	named := service{name: "named", index: 33}
	f := ownFixture(t, options{services: []service{named}, stopped: true})
	resolver := netip.AddrPortFrom(routed.addr(false), 53).String()
	must(t, os.WriteFile(f.manifest(), append(render(t, f.services), namedSlice...), 0o644))
	config := strings.Replace(f.config(), "discovery:\n", "discovery:\n  names: {resolver: \""+resolver+"\"}\n", 1) + "stateDir: " + f.path("state") + "\n"
	must(t, os.WriteFile(f.path("config.yaml"), []byte(config), 0o644))
	d := &directory{}
	d.set(attached.addr(false), attached.addr(true))
	end := serveNames(t, f.ZoneB, resolver, d)
	must(t, f.start())
	f.namedServes(t, named, "attached", "")
	var kept []net.Conn
	for _, six := range []bool{false, true} {
		kept = append(kept, f.dialed(t, named.at(echoPort, six)))
	}

	d.set(routed.addr(false), routed.addr(true))
	f.namedServes(t, named, "routed", "")
	for _, c := range kept {
		must(t, workload.PingPong(c, "after the address has gone", within))
	}
	if got := f.endpointOf(t, kept[0]).Addr(); got != attached.addr(false) {
		t.Errorf("a connection has gone to %s", got)
	}

	end()
	f.namedServes(t, named, "routed", "the resolver "+resolver+" fails: read: connection refused; the last answer is kept")
	d.set(attached.addr(false), attached.addr(true), netip.MustParseAddr("127.0.0.1"), onNode.addr(false))
	end = serveNames(t, f.ZoneB, resolver, d)
	f.namedServes(t, named, "attached", onNode.addr(false).String()+" is refused", "127.0.0.1 is refused")
	f.checkPrivileges(t)

	must(t, f.weir.Stop(within))
	end()
	must(t, f.start())
	f.namedServes(t, named, "attached", "fails: read: connection refused; the last answer before the start is kept, of 20")
}

// namedServes waits until an endpoint has all new connections, and the status exactly these problems of names.
func (f *fixture) namedServes(t *testing.T, s service, server string, problems ...string) {
	t.Helper()
	must(t, f.poll(func(ctx context.Context) error {
		status, err := f.admin.Status(ctx)
		if err != nil {
			return err
		}
		var found []string
		for _, p := range status.Problems {
			if strings.Contains(p.Reason, "name web.lab.example: ") {
				found = append(found, p.Reason)
			}
		}
		for _, text := range problems {
			if all := strings.Join(found, "\n"); !strings.Contains(all, text) || (text == "") != (all == "") {
				return fmt.Errorf("problems %q, want %q", found, problems)
			}
		}
		for _, six := range []bool{false, true} {
			if name, err := f.whoServes(s.at(httpPort, six)); err != nil || name != server {
				return fmt.Errorf("served by %q, %v, want %s", name, err, server)
			}
		}
		return nil
	}))
}
