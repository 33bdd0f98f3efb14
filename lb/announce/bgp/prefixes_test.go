package bgp_test

import (
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/weirlb/weir/lb/announce"
	"github.com/weirlb/weir/perf/netlab/router"
)

// A router that sends too many prefixes of a family loses the session, and gets it back once it
// sends fewer.
func TestWireTooManyPrefixes(t *testing.T) {
	requireFRR(t)
	t.Parallel()
	f := newFleet(t, 1)
	text := router.FRR(router.Neighbors{Addresses: []netip.Addr{node4(0), node6(0)}})
	many := text
	for family, prefix := range map[string]string{"ipv4": "198.18.%d.%d/32", "ipv6": "2001:db8::%x:%x/128"} {
		begins, lines := " address-family "+family+" unicast\n", strings.Builder{}
		for i := range 10_001 {
			fmt.Fprintf(&lines, "  network "+prefix+"\n", i>>8, i&0xff)
		}
		many = strings.Replace(many, begins, begins+lines.String(), 1)
	}
	r, err := router.StartFRR(f.Router, f.Dir(), many)
	started(t, r, err)
	s := start(t, f.Nodes[0], bothFamilies("")...)
	s.set(t, announce.Route{Prefix: vip4}, announce.Route{Prefix: vip6})
	s.untilPeers(t, "have sent too many", func(p *announce.Peer) bool {
		return !p.Established && p.Ends > 0 && strings.Contains(p.Reason, "prefixes")
	})
	must(t, r.Kill())
	must(t, os.RemoveAll(f.Dir()+"/frr-router"))
	r, err = router.StartFRR(f.Router, f.Dir(), text)
	started(t, r, err)
	untilHops(t, f, vip4, node4(0))
	untilHops(t, f, vip6, node6(0))
}
