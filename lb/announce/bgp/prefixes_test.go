package bgp_test

import (
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/weirlb/weir/lb/announce"
	"github.com/weirlb/weir/perf/netlab/patience"
	"github.com/weirlb/weir/perf/netlab/router"
)

// A router that sends too many prefixes loses the session, and gets it back once it sends
// fewer.
func TestWireTooManyPrefixes(t *testing.T) {
	requireFRR(t)
	f := newFleet(t, 1)
	text := router.FRR(router.Neighbors{Addresses: []netip.Addr{node4(0)}})
	many := strings.Builder{}
	many.WriteString(" address-family ipv4 unicast\n")
	for i := range 10_001 {
		fmt.Fprintf(&many, "  network 198.18.%d.%d/32\n", i>>8, i&0xff)
	}
	r, err := router.StartFRR(f.Router, f.Dir(), strings.Replace(text, " address-family ipv4 unicast\n", many.String(), 1))
	started(t, r, err)
	s := start(t, f.Nodes[0], bothFamilies("")[0])
	s.set(t, announce.Route{Prefix: vip4})
	deadline := time.Now().Add(patience.For(40 * time.Second))
	for {
		p := s.say(t, "")[0]
		if !p.Established && p.Ends > 0 && strings.Contains(p.Reason, "prefixes") {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("after too many prefixes: %+v", p)
		}
		time.Sleep(20 * time.Millisecond)
	}
	must(t, r.Kill())
	must(t, os.RemoveAll(f.Dir()+"/frr-router"))
	r, err = router.StartFRR(f.Router, f.Dir(), text)
	started(t, r, err)
	untilHops(t, f, vip4, node4(0))
}
