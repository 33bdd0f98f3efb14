package poolfile

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"

	"github.com/weirlb/weir/discovery/addresspool"
)

// example is a set of manifests that MetalLB's documentation shows, with what a node does.
type example struct {
	name  string
	files []string
	node  string // "": node-1
	pools int
	peers []string // as peerText has them
	// routes are as routeText has them.
	routes []string
	// faults begin with object and field.
	faults []string
	// listed is what a node does that has the objects from an API server, nil: the same. There it knows
	// its labels, and the password of the Secret that an example names.
	listed *outcome
}

// outcome is what a node does.
type outcome struct {
	peers, routes, faults []string
}

const (
	iBGP       = "64512 to 64512 at 172.30.0.3"
	leased     = "198.51.100.0/24"
	rangeOfTen = "192.168.1.240/29 192.168.1.248/31 192.168.1.250/32"
	plain      = " /0 /0" // a route per address
)

// examples are in the order of the documentation.
var examples = []example{
	{name: "pool", files: []string{"configuration_01"}, pools: 1},
	{name: "layer 2", files: []string{"configuration_02", "configuration_03"}, pools: 1, routes: []string{"link [192.168.1.240/29 192.168.1.248/31 192.168.1.250/32] []"}},
	{name: "layer 2 of a pool", files: []string{"configuration_02", "configuration_04"}, pools: 1, routes: []string{"link [192.168.1.240/29 192.168.1.248/31 192.168.1.250/32] []"}},
	{
		name: "BGP", files: []string{"configuration_05", "configuration_06", "configuration_07"}, pools: 1,
		peers: []string{"64500 to 64501 at 10.0.0.1"}, routes: []string{rangeOfTen + plain},
	},
	{
		name: "BGP of a pool", files: []string{"configuration_05", "configuration_06", "configuration_08"}, pools: 1,
		peers: []string{"64500 to 64501 at 10.0.0.1"}, routes: []string{rangeOfTen + plain},
	},
	{name: "BFD", files: []string{"configuration_09", "configuration_10"}, peers: []string{iBGP + " bfd 380ms 270ms 3"}},
	{
		name: "addresses and their prefix", files: []string{"bgp_01", "bgp_02", "bgp_03"}, pools: 1,
		routes: []string{leased + " /24 /0", leased + plain + " pref 100 [4294967042]"},
	},
	{
		name: "router of a rack", files: []string{"bgp_04"}, node: "hostC", faults: []string{"BGPPeer metallb-system/example: spec.nodeSelectors[0].matchLabels: rack "},
		listed: &outcome{peers: []string{iBGP + " port 180"}},
	},
	{name: "pool by some nodes: this", files: []string{"bgp_01", "bgp_05"}, node: "NodeB", pools: 1, routes: []string{leased + plain}},
	{name: "pool by some nodes: another", files: []string{"bgp_01", "bgp_05"}, node: "NodeC", pools: 1},
	{name: "pool to some routers", files: []string{"bgp_06"}, faults: []string{
		"BGPAdvertisement metallb-system/example: spec.ipAddressPools[0]: there is no pool PoolA",
		"BGPAdvertisement metallb-system/example: spec.peers[0]: no BGPPeer PeerA is", "BGPAdvertisement metallb-system/example: spec.peers[1]: no BGPPeer PeerB is",
		"BGPAdvertisement metallb-system/example: spec.ipAddressPools: ",
	}},
	{name: "some Services", files: []string{"bgp_01", "bgp_07", "bgp_08"}, pools: 1, routes: []string{
		leased + plain + " pref 200 of [{map[environment:production] []}]", leased + plain + " pref 100 of [{map[environment:staging] []}]",
	}},
	{name: "some Services by layer 2", files: []string{"bgp_01", "l2_09", "l2_10"}, pools: 1, routes: []string{
		"link [" + leased + "] [eth1] of [{map[tier:backend] []}]", "link [" + leased + "] [eth0] of [{map[tier:frontend] []}]",
	}},
	{name: "source address", files: []string{"bgp_09"}, peers: []string{iBGP + " port 179 from 172.30.0.2"}},
	{name: "source address: another node", files: []string{"bgp_09"}, node: "node-2"},
	{name: "community alias", files: []string{"bgp_01", "bgp_10", "bgp_11"}, pools: 1, routes: []string{leased + plain + " pref 100 [80871425]"}},
	{name: "VRF", files: []string{"bgp_12"}, faults: []string{"BGPPeer metallb-system/example: spec.vrf: "}},
	{name: "FRR's own configuration", files: []string{"bgp_13"}, peers: []string{iBGP}, faults: []string{"FRRConfiguration metallb-system/with-recv: kind: "}},
	{name: "graceful restart", files: []string{"bgp_14"}, peers: []string{iBGP + " graceful restart"}},
	{name: "local number", files: []string{"bgp_15"}, peers: []string{"64512 to 64520 at 172.30.0.3 as 65410"}},
	{name: "manual pool", files: []string{"pool_01", "pool_02"}, pools: 2},
	{name: "pool of namespaces and Services", files: []string{"pool_03"}, pools: 1},
	{name: "pools that are elsewhere", files: []string{"pool_04"}, faults: []string{
		"BGPAdvertisement metallb-system/external: spec.ipAddressPools[0]: ", "BGPAdvertisement metallb-system/external: spec.ipAddressPools[1]: ",
		"BGPAdvertisement metallb-system/external: spec.ipAddressPools[2]: ", "BGPAdvertisement metallb-system/external: spec.ipAddressPools: ",
	}},
	{name: "advanced layer 2", files: []string{"l2_01", "l2_02", "l2_03", "l2_04", "l2_05", "l2_06", "l2_07", "l2_08"}, faults: []string{
		"L2Advertisement metallb-system/prefer-edge: spec.preferredNodeSelectors: ",
		"L2Advertisement metallb-system/tiered-zones: spec.preferredNodeSelectors: ",
		"L2Advertisement metallb-system/zone-boost: spec.preferredNodeSelectors: ",
		"L2Advertisement metallb-system/example: spec.ipAddressPools[0]: ",
		"L2Advertisement metallb-system/example: spec.ipAddressPools[0]: ",
		"L2Advertisement metallb-system/example: spec.ipAddressPools[0]: ",
		"L2Advertisement metallb-system/example: spec.ipAddressPools[0]: ",
		"L2Advertisement metallb-system/example-advertisement10: spec.ipAddressPools[0]: ",
		"L2Advertisement metallb-system/example: spec.ipAddressPools: no pool",
		"L2Advertisement metallb-system/example-advertisement9: spec.ipAddressPools: no pool",
	}, listed: &outcome{faults: []string{
		"L2Advertisement metallb-system/prefer-edge: spec.preferredNodeSelectors: ",
		"L2Advertisement metallb-system/tiered-zones: spec.preferredNodeSelectors: ",
		"L2Advertisement metallb-system/zone-boost: spec.preferredNodeSelectors: ",
		"L2Advertisement metallb-system/example: spec.ipAddressPools[0]: ",
		"L2Advertisement metallb-system/example-advertisement10: spec.ipAddressPools[0]: ",
		"L2Advertisement metallb-system/example-advertisement9: spec.ipAddressPools: no pool",
	}}},
	{name: "ConfigMap", files: []string{"migration_01"}},
	{
		name: "of a ConfigMap", files: []string{"migration_02"}, pools: 1,
		peers: []string{"64512 to 64512 at 10.96.0.100 hold 1m30s"}, routes: []string{leased + plain + " pref 100 [4227859666]"},
	},
	{
		name: "questions: two pools", files: []string{"faq_01", "faq_02", "faq_04"}, pools: 2,
		routes: []string{"192.168.10.0/24 192.168.9.1/32 192.168.9.2/31 192.168.9.4/31 fc00:f853:ccd:e799::/124" + plain},
	},
	{
		name: "questions: both protocols", files: []string{"faq_03", "faq_04", "faq_05"}, pools: 1,
		routes: []string{"192.168.10.0/24" + plain, "link [192.168.10.0/24] []"},
	},
	{
		name: "two environments", files: []string{"usage_01", "usage_02", "usage_03", "usage_04", "usage_05"}, pools: 2,
		routes: []string{"42.176.25.64/30" + plain, "192.168.144.0/20" + plain + " [80871425]"},
	},
	{name: "sample: pools by label", files: []string{"sample_bgpadv_selectspool_by_label"}, faults: []string{"BGPAdvertisement metallb-system/advertisement: spec.ipAddressPools: "}},
	{name: "sample: pools by name", files: []string{"sample_bgpadv_selectspool_by_list"}, faults: []string{
		"BGPAdvertisement metallb-system/advertisement: spec.ipAddressPools[0]: ", "BGPAdvertisement metallb-system/advertisement: spec.peers[0]: ", "BGPAdvertisement metallb-system/advertisement: spec.ipAddressPools: ",
	}},
	{name: "sample: communities", files: []string{"sample_bgpadvertisement_communities_localpref"}, faults: []string{
		"BGPAdvertisement metallb-system/advertisement: spec.ipAddressPools[0]: ", "BGPAdvertisement metallb-system/advertisement: spec.ipAddressPools: ",
	}},
	{name: "sample: community alias", files: []string{"sample_bgpadvertisement_community_alias"}, faults: []string{
		"BGPAdvertisement metallb-system/advertisement: spec.ipAddressPools[0]: ", "BGPAdvertisement metallb-system/advertisement: spec.ipAddressPools: ",
	}},
	{
		name: "sample: some nodes", files: []string{"bgp_01", "sample_bgpadvertisement_with_node_selector"}, node: "kind-worker", pools: 1,
		routes: []string{leased + plain},
	},
	{name: "sample: router", files: []string{"sample_bgppeer_simple"}, peers: []string{iBGP}},
	{name: "sample: BFD", files: []string{"sample_bgppeer_with_bfdprofile"}, peers: []string{iBGP + " bfd 380ms 270ms 3"}},
	{name: "sample: session options", files: []string{"sample_bgppeer_with_session_options"}, faults: []string{"BGPPeer metallb-system/peer: spec.connectTime: "}},
	{name: "sample: VRF", files: []string{"sample_bgppeer_with_vrf"}, faults: []string{"BGPPeer metallb-system/peer: spec.vrf: "}},
	{
		name: "sample: Secret", files: []string{"sample_bgppeer_withsecret"}, faults: []string{"BGPPeer metallb-system/peer-with-secret: spec.passwordSecret: "},
		listed: &outcome{peers: []string{iBGP + " port 179 hold 9m0s with a password"}},
	},
	{
		name: "sample: all of BGP", files: []string{"sample_deployment_bgp"}, pools: 1, peers: []string{iBGP, "64512 to 64512 at fc00:f853:ccd:e793::5"},
		routes: []string{"192.168.10.0/24 fc00:f853:ccd:e799::/124" + plain},
	},
	{name: "sample: all of layer 2", files: []string{"sample_deployment_l2"}, pools: 1, routes: []string{"link [192.168.10.0/24 fc00:f853:ccd:e799::/124] []"}},
	{name: "sample: pool", files: []string{"sample_ipaddresspool_simple"}, pools: 1},
	{name: "sample: pool with selectors", files: []string{"sample_ipaddresspool_with_selector"}, pools: 1},
	{name: "sample: layer 2 of pools", files: []string{"sample_l2adv_selects_pools_by_list"}, faults: []string{
		"L2Advertisement metallb-system/example: spec.ipAddressPools[0]: ", "L2Advertisement metallb-system/example: spec.ipAddressPools: ",
	}},
	{name: "sample: layer 2 of nodes", files: []string{"sample_l2adv_with_node_selector"}},
	{
		name: "sample: pool by BGP", files: []string{"sample_simple_pool_adv_bgp"}, pools: 1,
		routes: []string{"192.168.10.0/24 192.168.9.1/32 192.168.9.2/31 192.168.9.4/31 fc00:f853:ccd:e799::/124" + plain},
	},
	{name: "sample: pool by layer 2", files: []string{"sample_simple_pool_adv_l2"}, pools: 1,
		routes: []string{"link [192.168.10.0/24 192.168.9.1/32 192.168.9.2/31 192.168.9.4/31 fc00:f853:ccd:e799::/124] []"}},
}

// Every example of MetalLB's documentation does what it says, or is refused with the field.
func TestMetalLBExamples(t *testing.T) {
	archive, err := txtar.ParseFile("testdata/metallb.txtar")
	if err != nil {
		t.Fatal(err)
	}
	dir, unused := t.TempDir(), map[string]bool{}
	for _, f := range archive.Files {
		unused[f.Name] = true
		if err := os.WriteFile(filepath.Join(dir, f.Name+".yaml"), f.Data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, e := range examples {
		t.Run(e.name, func(t *testing.T) { e.check(t, dir) })
		for _, f := range e.files {
			delete(unused, f)
		}
	}
	if len(unused) > 0 {
		t.Errorf("not tried: %v", unused)
	}
}

// The example of LAN.md announces the addresses of some Services.
func TestTheExampleOfALANAnnouncesOnLinks(t *testing.T) {
	text, err := os.ReadFile("../../../deploy/LAN.md")
	if err != nil {
		t.Fatal(err)
	}
	for block := range strings.SplitSeq(string(text), "```") {
		block, isYAML := strings.CutPrefix(block, "yaml\n")
		if !isYAML || !strings.Contains(block, "kind: L2Advertisement") {
			continue
		}
		file := filepath.Join(t.TempDir(), "lan.yaml")
		if err := os.WriteFile(file, []byte(block), 0o600); err != nil {
			t.Fatal(err)
		}
		objects, err := Read([]string{file})
		got, _ := outcomeOf(objects, addresspool.Node{Name: "edge-1", Links: true})
		if err != nil || len(got.faults) > 0 || !slices.Equal(got.routes, []string{"link [192.0.2.128/26] [] of [{map[tier:web] []}]"}) {
			t.Errorf("%+v, %v", got, err)
		}
		return
	}
	t.Error("LAN.md has no L2Advertisement")
}

func (e *example) check(t *testing.T, dir string) {
	var paths []string
	for _, f := range e.files {
		paths = append(paths, filepath.Join(dir, f+".yaml"))
	}
	objects, err := Read(paths)
	if err != nil {
		t.Fatal(err)
	}
	n := addresspool.Node{Name: "node-1", Links: true}
	if e.node != "" {
		n.Name = e.node
	}
	got, pools := outcomeOf(objects, n)
	if pools != e.pools || !slices.Equal(got.peers, e.peers) || !slices.Equal(got.routes, e.routes) {
		t.Errorf("%d pools, %+v", pools, got)
	}
	if !slices.EqualFunc(got.faults, e.faults, strings.HasPrefix) {
		t.Errorf("faults %q, want %q", got.faults, e.faults)
	}
}

func outcomeOf(objects []addresspool.Object, n addresspool.Node) (o outcome, pools int) {
	c := addresspool.Decode(objects)
	a := c.Announcement(n)
	for _, p := range a.Peers {
		o.peers = append(o.peers, peerText(&p))
	}
	for _, r := range a.Routes {
		o.routes = append(o.routes, routeText(&r))
	}
	for _, l := range a.Links {
		o.routes = append(o.routes, fmt.Sprintf("link %v %v", l.Prefixes, l.Interfaces)+servicesText(l.Services))
	}
	for _, f := range append(c.Faults, a.Faults...) {
		text := f.Error()
		if _, behind, ok := strings.Cut(text, ".yaml: "); ok {
			text = behind
		}
		o.faults = append(o.faults, text)
	}
	return o, len(c.Pools)
}

// peerText is all of a peer that the examples set.
func peerText(p *addresspool.Peer) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d to %d at %s%s", p.MyASN, p.ASN, p.Address, p.Interface)
	for _, f := range []struct {
		name string
		set  bool
		v    any
	}{
		{"port", p.Port != 0, p.Port}, {"from", p.SourceAddress != "", p.SourceAddress}, {"as", p.RouterID != "", p.RouterID}, {"as", p.LocalASN != 0, p.LocalASN},
		{"hold", p.Hold != 0, p.Hold}, {"keepalive", p.Keepalive != 0, p.Keepalive},
	} {
		if f.set {
			fmt.Fprintf(&b, " %s %v", f.name, f.v)
		}
	}
	if p.EBGPMultiHop {
		b.WriteString(" multihop")
	}
	if p.Key != "" {
		b.WriteString(" with a password")
	}
	if p.EnableGracefulRestart {
		b.WriteString(" graceful restart")
	}
	if p.BFD != nil {
		fmt.Fprintf(&b, " bfd %v %v %d", p.BFD.Receive(), p.BFD.Transmit(), p.BFD.Multiplier())
	}
	return b.String()
}

func routeText(r *addresspool.Advertised) string {
	var b strings.Builder
	for _, p := range r.Prefixes {
		fmt.Fprintf(&b, "%v ", p)
	}
	fmt.Fprintf(&b, "/%d /%d", r.Aggregate4, r.Aggregate6)
	if r.LocalPref > 0 {
		fmt.Fprintf(&b, " pref %d", r.LocalPref)
	}
	if len(r.Communities) > 0 {
		fmt.Fprintf(&b, " %v", r.Communities)
	}
	if len(r.LargeCommunities) > 0 {
		fmt.Fprintf(&b, " %v", r.LargeCommunities)
	}
	return b.String() + servicesText(r.Services)
}

func servicesText(list []addresspool.Selector) string {
	if len(list) == 0 {
		return ""
	}
	return fmt.Sprintf(" of %v", list)
}
