package lb

import (
	"maps"
	"net/netip"
	"testing"

	"github.com/weirlb/weir/lb/localports"
	"github.com/weirlb/weir/lb/route"
	"github.com/weirlb/weir/lb/snat"
	"github.com/weirlb/weir/lb/table"
)

// An address of its own is Weir's with all ports; of an address of the node Weir has the
// configured range.
func TestSNATSourcesOfAddresses(t *testing.T) {
	router := route.Static(map[netip.Prefix]route.Path{
		netip.PrefixFrom(node4, 32): {Kind: route.Host, Local: true, MTU: 1500},
		netip.PrefixFrom(snat4, 24): {Kind: route.Attached, MTU: 1500},
	}, nil)
	ss := &sources{router: router, ports: sharedPorts{configured: localports.Range{Lo: 61000, Hi: 65535}, byFlow: errNotAttached}}
	shared := snat.Source{Addr: node4, Lo: 61000, Hi: 65535, Shared: true}
	if got := ss.configured(node4); got != shared {
		t.Errorf("an address of the node: %v, want %v", got, shared)
	}
	if got := ss.configured(snat4); got != snat.Exclusive(snat4) {
		t.Errorf("an address of Weir's own: %v", got)
	}

	pool := []snat.Source{snat.Exclusive(snat4)}
	want := map[netip.Addr]snat.Source{snat4: snat.Exclusive(snat4)}
	for _, a := range router.Sources() {
		if a != snat4 {
			want[a] = snat.Source{Addr: a, Lo: 61000, Hi: 65535, Shared: true}
		}
	}
	if got := ss.wanted(pool); !maps.Equal(got, want) {
		t.Errorf("wanted %v, want %v", got, want)
	}
}

// A refresh keeps a drain, and the configured addresses replace those of the interfaces.
func TestARefreshPublishesTheNode(t *testing.T) {
	l := newControl(t, Config{SNATAddresses: []netip.Addr{snat4}}, nil)
	l.sources.steered[snat4] = snat.Exclusive(snat4)
	l.refuseConnections()
	if err := l.refreshAddresses(); err != nil {
		t.Fatal(err)
	}
	node := l.node.Load()
	if !node.Draining || node.ReturnPath {
		t.Errorf("draining %v, return path %v without a host veth", node.Draining, node.ReturnPath)
	}
	path := &route.Path{Kind: route.Attached, Source: node4}
	s, ok := node.Source(path, &table.EndpointEntry{Family: 4}, 0)
	if want := l.sources.configured(snat4); !ok || s != want {
		t.Errorf("flows have the source %v, want %v", s, want)
	}
}
