package lb

import (
	"errors"
	"net/netip"
	"slices"
	"testing"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/localports"
	"github.com/weirlb/weir/lb/table"
)

// New flows get more ports only when every program tells packets by flow; until then, and without
// such programs, packets are told by the range of which flows get ports, or by all ports while
// flows of the last process have others.
func TestPortsOnAddressesOfTheNode(t *testing.T) {
	configured, all := localports.Range{Lo: 61000, Hi: 65535}, localports.Range{Lo: 1024, Hi: 65535}
	none := localports.Range{Lo: 1, Hi: 0}
	off := errors.New("off")
	taken := func(list ...[2]uint16) *conntrack.PortSet {
		s := new(conntrack.PortSet)
		for _, r := range list {
			s.Add(r[0], r[1])
		}
		return s
	}
	for _, tt := range []struct {
		name                  string
		ports                 sharedPorts
		settled, now          *conntrack.PortSet
		given, steered, owned localports.Range
		count                 int
		reason                string
	}{
		{"before the attachment", sharedPorts{auto: true, byFlow: errNotAttached}, taken(), taken(), configured, configured, configured, 4536, errNotAttached.Error()},
		{"by flow", sharedPorts{auto: true}, taken([2]uint16{8080, 8080}), taken([2]uint16{8080, 8080}, [2]uint16{62000, 62009}), widest, none, none, 33512 - 11, ""},
		{"by flow, where the node uses all of the configured range", sharedPorts{auto: true}, taken([2]uint16{8080, 8080}),
			taken([2]uint16{8080, 8080}, [2]uint16{61000, 65535}), widest, none, none, 33512 - 1 - 4536, ""},
		{"by flow, where most ports are ephemeral", sharedPorts{auto: true}, taken([2]uint16{5000, 60999}), taken([2]uint16{5000, 60999}),
			localports.Range{Lo: 61000, Hi: 4999}, none, none, 4536 + 3976, "the node uses or reserves the others of 61000-65535,1024-29999"},
		{"by flow, where all others are ephemeral", sharedPorts{auto: true}, taken([2]uint16{1024, 60999}), taken([2]uint16{1024, 60999}),
			configured, none, none, 4536, "the node uses or reserves the others of 61000-65535,1024-29999"},
		{"by flow, where all ports are ephemeral", sharedPorts{auto: true}, taken([2]uint16{1024, 65535}), taken([2]uint16{1024, 65535}),
			configured, none, none, 4536, "the node uses or reserves the others of 61000-65535,1024-29999"},
		{"by flow, where fewer others are left than the range has", sharedPorts{auto: true}, taken([2]uint16{1100, 65535}), taken([2]uint16{1100, 65535}),
			configured, none, none, 4536, "the node uses or reserves the others of 61000-65535,1024-29999"},
		{"by flow, of a configured range", sharedPorts{}, taken(), taken([2]uint16{65535, 65535}), configured, none, none, 4535, ""},
		{"without a flow table", sharedPorts{auto: true, byFlow: off}, taken(), taken([2]uint16{61000, 61000}), configured, configured, configured, 4535, "off"},
		{"of a configured range without a flow table", sharedPorts{byFlow: off}, taken(), taken(), configured, configured, configured, 4536, ""},
		{"after a process with a flow table", sharedPorts{auto: true, byFlow: off, former: true}, taken(), taken(), configured, all, configured, 4536,
			"off; until flows of the last process end, packets to all ports from 1024 are Weir's to sort"},
		{"where the node uses all of the range", sharedPorts{}, taken(), taken([2]uint16{61000, 65535}), configured, none, none, 4536, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := tt.ports
			s.configured = configured
			if !s.set(used{tt.settled, tt.now}) {
				t.Error("the first look changes nothing")
			}
			if s.set(used{tt.settled, tt.now}) {
				t.Error("a look at the same ports changes something")
			}
			if s.given() != tt.given || s.steered() != tt.steered || s.owned() != tt.owned {
				t.Errorf("given %s, steered %s, owned %s", s.given().Text(), s.steered().Text(), s.owned().Text())
			}
			if got := s.status(); got.Count != tt.count || got.Reason != tt.reason || got.Ports != tt.given.Text() {
				t.Errorf("status %+v", got)
			}
		})
	}
}

// Frontends on addresses of the node keep flows off their ports, node ports and whole ranges too.
func TestPortsOfFrontendsOfTheNode(t *testing.T) {
	node, other := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("203.0.113.1")
	frontend := func(a netip.Addr, first, last uint16) *table.FrontendEntry {
		return &table.FrontendEntry{AddrPort: netip.AddrPortFrom(a, first), LastPort: last}
	}
	got := new(conntrack.PortSet)
	addFrontends(got, slices.Values([]*table.FrontendEntry{
		frontend(node, 8080, 0), frontend(node, 20000, 20009), frontend(other, 9090, 0), frontend(other, 25000, 25009),
	}), func(a netip.Addr) bool { return a == node })
	want := new(conntrack.PortSet)
	want.Add(8080, 8080)
	want.Add(20000, 20009)
	if *got != *want {
		all := localports.Range{Lo: conntrack.FirstPort, Hi: 65535}
		t.Errorf("%d of %d ports are left, want %d", all.Count(got), all.Count(nil), all.Count(want))
	}
}
