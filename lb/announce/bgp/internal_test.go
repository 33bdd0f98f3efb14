package bgp_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/weirlb/weir/lb/announce"
	"github.com/weirlb/weir/perf/netlab/patience"
	"github.com/weirlb/weir/perf/netlab/router"
)

// A router of the node's own autonomous system gets an empty path, the local preference and the
// discriminator.
func TestWireAttributesOfInternalPeers(t *testing.T) {
	requireFRR(t)
	t.Parallel()
	f := newFleet(t, 1)
	text := strings.ReplaceAll(router.FRR(router.Neighbors{Addresses: []netip.Addr{node4(0)}}),
		fmt.Sprintf("remote-as %d", router.NodeASN), "remote-as internal")
	r, err := router.StartFRR(f.Router, f.Dir(), text)
	started(t, r, err)
	s := startAs(t, f.Nodes[0], router.ASN, bothFamilies("")[0])
	med, pref := uint32(50), uint32(200)
	s.set(t, announce.Route{Prefix: vip4, Attributes: announce.Attributes{MED: &med, LocalPref: &pref}})
	untilHops(t, f, vip4, node4(0))
	var got struct {
		Paths []struct {
			ASPath struct {
				Length int `json:"length"`
			} `json:"aspath"`
			Metric int  `json:"metric"`
			Pref   int  `json:"locPrf"`
			Valid  bool `json:"valid"`
		} `json:"paths"`
	}
	must(t, r.VTYSH("show bgp ipv4 unicast "+vip4.String()+" json", &got))
	if len(got.Paths) != 1 || got.Paths[0].ASPath.Length != 0 || got.Paths[0].Metric != 50 || got.Paths[0].Pref != 200 || !got.Paths[0].Valid {
		t.Errorf("%+v", got.Paths)
	}
	// The default of a router for routes without a preference, sent in full (RFC 4271 5.1.5).
	s.set(t, announce.Route{Prefix: vip4})
	for deadline := time.Now().Add(patience.For(20 * time.Second)); ; time.Sleep(20 * time.Millisecond) {
		must(t, r.VTYSH("show bgp ipv4 unicast "+vip4.String()+" json", &got))
		if len(got.Paths) == 1 && got.Paths[0].Pref == 100 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("without a preference: %+v", got.Paths)
		}
	}
}
