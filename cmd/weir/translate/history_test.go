package translate

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/discovery"
	"github.com/weirlb/weir/lb/table"
	"github.com/weirlb/weir/topology"
)

// host is the node's side of a history: what may change without any Service.
type host struct {
	own       map[netip.Addr]bool // addresses of the node, on whatever interface
	nodePorts []netip.Addr
	protected []uint16
	mode      conntrack.Mode
	labels    map[string]string
}

func (h *host) options() Options {
	return Options{
		Node: topology.Node{Name: "edge", Labels: h.labels}, NodeAddresses: h.nodePorts,
		Local: func(a netip.Addr) bool { return h.own[a] }, ProtectedPorts: h.protected, ExternalIPs: true, Mode: h.mode,
	}
}

var (
	anyVIP  = rapid.SampledFrom(addrs("198.51.100.10", "198.51.100.11", "192.0.2.1", "2001:db8:9::1"))
	anyMode = rapid.SampledFrom([]string{"", "nat", "dnat", "l2dsr", "ipip", "gue"})
	anyPort = rapid.SampledFrom([]uint16{22, 80, 8080})
)

func drawService(t *rapid.T, name string) *discovery.Service {
	return service(name, func(s *discovery.Service) {
		p := &s.Ports[0]
		p.Port, p.NodePort = anyPort.Draw(t, "port"), rapid.SampledFrom([]uint16{0, 30080, 22}).Draw(t, "node port")
		s.LoadBalancerIPs = rapid.SliceOfNDistinct(anyVIP, 0, 2, rapid.ID[netip.Addr]).Draw(t, "load balancer IPs")
		s.ExternalIPs = rapid.SliceOfNDistinct(anyVIP, 0, 1, rapid.ID[netip.Addr]).Draw(t, "external IPs")
		s.Options.ForwardingMode = anyMode.Draw(t, "forwarding mode")
		s.Policy.ExternalLocal = rapid.Bool().Draw(t, "local")
		for i := range rapid.IntRange(0, 3).Draw(t, "endpoints") {
			target := rapid.SampledFrom([]uint16{p.Port, 8080}).Draw(t, "target")
			p.Endpoints = append(p.Endpoints, ep(fmt.Sprintf("10.1.0.%d:%d edge zone-%d zone-%d", i+1, target, i, i)))
		}
	})
}

// note brings a table, as text per Service, in line with a batch.
func note(in map[string]string, b Batch) {
	for _, name := range b.Delete {
		delete(in, name)
	}
	for i := range b.Put {
		in[b.Put[i].Name] = text(&b.Put[i])
	}
}

func text(s *table.Service) string { return fmt.Sprintf("%+v", *s) }

// Whatever the order in which Services, the node's addresses, its labels and the
// options changed, the table ends as that of a start with what there is now: nodes
// that announce one address must not differ by their histories.
func TestAnyHistoryEndsAsAFreshStart(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := &host{own: map[netip.Addr]bool{}}
		services := map[string]*discovery.Service{}
		tr, have := New(h.options()), map[string]string{}
		all := func() *discovery.Update {
			return &discovery.Update{Put: slices.Collect(maps.Values(services))}
		}
		t.Repeat(map[string]func(*rapid.T){
			"put": func(t *rapid.T) {
				name := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "name")
				services[name] = drawService(t, name)
				note(have, tr.Apply(update(services[name])))
			},
			"delete": func(t *rapid.T) {
				name := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "name")
				delete(services, name)
				note(have, tr.Apply(&discovery.Update{Deleted: []discovery.ServiceName{{Namespace: "ns", Name: name}}}))
			},
			"addresses": func(t *rapid.T) {
				h.own = map[netip.Addr]bool{}
				for _, a := range rapid.SliceOfN(anyVIP, 0, 3).Draw(t, "own") {
					h.own[a] = true
				}
				if rapid.Bool().Draw(t, "other node port addresses") {
					h.nodePorts = rapid.SliceOfNDistinct(anyVIP, 0, 2, rapid.ID[netip.Addr]).Draw(t, "node port addresses")
				}
				note(have, tr.SetNodeAddresses(h.nodePorts))
			},
			"labels": func(t *rapid.T) {
				h.labels = map[string]string{topology.LabelZone: fmt.Sprintf("zone-%d", rapid.IntRange(0, 2).Draw(t, "zone"))}
				note(have, tr.Apply(&discovery.Update{Node: &discovery.Node{Node: topology.Node{Name: "edge", Labels: h.labels}}}))
			},
			"reload": func(t *rapid.T) {
				h.protected = rapid.SliceOfNDistinct(anyPort, 0, 2, rapid.ID[uint16]).Draw(t, "protected ports")
				h.mode = rapid.SampledFrom([]conntrack.Mode{conntrack.ModeNAT, conntrack.ModeIPIP}).Draw(t, "mode")
				tr.SetOptions(h.options())
				note(have, tr.Apply(all()))
			},
			"": func(t *rapid.T) {
				fresh := map[string]string{}
				note(fresh, New(h.options()).Apply(all()))
				for name := range services {
					if have["ns/"+name] != fresh["ns/"+name] {
						t.Fatalf("%s is served as\n%s\nand after a fresh start as\n%s", name, have["ns/"+name], fresh["ns/"+name])
					}
				}
				if len(have) != len(fresh) {
					t.Fatalf("%d Services are served, after a fresh start %d", len(have), len(fresh))
				}
			},
		})
	})
}
