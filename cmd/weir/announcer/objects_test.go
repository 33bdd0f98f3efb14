package announcer

import (
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weirlb/weir/cmd/weir/config"
	"github.com/weirlb/weir/cmd/weir/problem"
	"github.com/weirlb/weir/lb/announce"
	"github.com/weirlb/weir/lb/announce/bgp"
	"github.com/weirlb/weir/lb/route"
)

const poolObjects = `apiVersion: metallb.io/v1beta1
kind: IPAddressPool
metadata: {name: public}
spec: {addresses: [203.0.113.0/24]}
---
apiVersion: metallb.io/v1beta1
kind: BGPAdvertisement
metadata: {name: all}
spec: {localPref: 120, communities: ["64512:7"]}
---
apiVersion: metallb.io/v1beta2
kind: BGPPeer
metadata: {name: edge}
spec: {myASN: 64512, peerASN: 64513, peerAddress: 192.0.2.1, holdTime: 30s, ebgpMultiHop: true, sourceAddress: 192.0.2.9}
---
apiVersion: metallb.io/v1beta2
kind: BGPPeer
metadata: {name: elsewhere}
spec: {myASN: 64512, peerASN: 64513, peerAddress: 192.0.2.2, sourceAddress: 192.0.2.10}
---
apiVersion: metallb.io/v1beta2
kind: BGPPeer
metadata: {name: twice}
spec: {myASN: 64512, peerASN: 64513, peerAddress: 192.0.2.3}
---
apiVersion: metallb.io/v1beta2
kind: BGPPeer
metadata: {name: vrf}
spec: {myASN: 64512, peerASN: 64513, peerAddress: 192.0.2.4, vrf: red}
---
apiVersion: metallb.io/v1beta2
kind: BGPPeer
metadata: {name: watched}
spec: {myASN: 64512, peerASN: 64513, peerAddress: 192.0.2.5, bfdProfile: slow}
---
apiVersion: metallb.io/v1beta1
kind: BFDProfile
metadata: {name: slow}
spec: {receiveInterval: 900}
`

// withObjects is a configuration with objects in a file.
func withObjects(t *testing.T, text string) *config.Configuration {
	t.Helper()
	file := filepath.Join(t.TempDir(), "pools.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	c := config.Default()
	c.NodeName, c.Announce.Objects, c.Announce.Speaker = "edge-1", []string{file}, config.AnnounceBGP
	return c
}

// objectsOf are the objects of files on a node.
func objectsOf(cfg *config.Configuration, node []route.Address) *objects {
	in := objectInput{addresses: node}
	in.readFiles(&cfg.Announce)
	return newObjects(cfg, &in)
}

// Objects add sessions and routes. Those that cannot be used are named, and out of service alone.
func TestObjectsAddSessionsAndRoutes(t *testing.T) {
	cfg := withObjects(t, poolObjects)
	cfg.Announce.ASN, cfg.Announce.Peers = 64512, []config.Peer{{Address: "192.0.2.3", ASN: 64513, BFD: &config.BFD{Multiplier: 5}}}
	node := []route.Address{{Prefix: netip.MustParsePrefix("192.0.2.9/24")}}
	o := objectsOf(cfg, node)
	base, err := configured(&cfg.Announce, nil)
	if err != nil {
		t.Fatal(err)
	}
	b, err := sessions(base, &cfg.Announce, o, node, netip.Addr{})
	if err != nil || len(b.Neighbors) != 3 || b.ASN != 64512 || b.RouterID != node[0].Prefix.Addr() {
		t.Fatalf("%+v, %v", b, err)
	}
	n := b.Neighbors[1]
	if n.Address.String() != "192.0.2.1" || n.Source != node[0].Prefix.Addr() || n.Hold != 30*time.Second || n.Keepalive != 10*time.Second || n.MultihopTTL != 255 {
		t.Errorf("%+v", n)
	}
	if configured, profile := b.Neighbors[0].BFD, b.Neighbors[2].BFD; n.BFD != nil ||
		*configured != (bgp.BFD{Receive: 300 * time.Millisecond, Transmit: 300 * time.Millisecond, Multiplier: 5}) ||
		*profile != (bgp.BFD{Receive: 900 * time.Millisecond, Transmit: 300 * time.Millisecond, Multiplier: 3}) {
		t.Errorf("BFD %+v, %+v, %+v", configured, n.BFD, profile)
	}
	for i, want := range []string{
		"BGPPeer vrf: spec.vrf", "BGPPeer elsewhere: spec.sourceAddress: this node has no address 192.0.2.10", "BGPPeer twice: spec.peerAddress: announce.peers",
	} {
		if i >= len(o.faults) || !strings.Contains(o.faults[i].Error(), want) {
			t.Errorf("faults %q, want %q", o.faults, want)
		}
	}
	// The sessions keep their identifier when the addresses of the node change.
	if b, err := sessions(base, &cfg.Announce, o, nil, node[0].Prefix.Addr()); err != nil || b.RouterID != node[0].Prefix.Addr() {
		t.Errorf("%v, %v", b.RouterID, err)
	}
	s := o.settings(&cfg.Announce).Advertisements
	if len(s) != 1 || s[0].Allow[0] != netip.MustParsePrefix("203.0.113.0/24") || *s[0].Attributes.LocalPref != 120 || s[0].Attributes.Communities[0] != 64512<<16|7 {
		t.Errorf("%+v", s)
	}
}

// A router of the node's own autonomous system takes a route with that number in its path for a
// loop. No object stops a node: nothing is prepended then, with a problem.
func TestNothingIsPrependedWithInternalPeers(t *testing.T) {
	cfg := withObjects(t, poolObjects)
	cfg.Announce.Prepend = 2
	said := func(a *Announcer) bool {
		return slices.ContainsFunc(a.Problems(), func(p problem.Problem) bool {
			return strings.Contains(p.Reason, "announce.prepend") && strings.Contains(p.Reason, "BGPPeer twice")
		})
	}
	for _, c := range []struct {
		name, text string
		want       uint8
	}{
		{"external", poolObjects, 2},
		{"internal", strings.Replace(poolObjects, "peerASN: 64513, peerAddress: 192.0.2.3", "peerASN: 64512, peerAddress: 192.0.2.3", 1), 0},
	} {
		if err := os.WriteFile(cfg.Announce.Objects[0], []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		a := serving(&spoken{}, announce.Settings{})
		a.Reload(cfg)
		if got := a.objects.settings(&cfg.Announce).Attributes.Prepend; got != c.want || said(a) != (c.want == 0) {
			t.Errorf("%s: %d, problems %+v", c.name, got, a.Problems())
		}
		cfg.Announce.Prepend = 0
		if a.Reload(cfg); said(a) {
			t.Errorf("%s, prepend 0: problems %+v", c.name, a.Problems())
		}
		cfg.Announce.Prepend = 2
		if err := os.WriteFile(cfg.Announce.Objects[0], []byte(poolObjects), 0o600); err != nil {
			t.Fatal(err)
		}
		a.Reload(cfg)
		if got := a.objects.settings(&cfg.Announce).Attributes.Prepend; got != 2 || said(a) {
			t.Errorf("%s, then external: %d, problems %+v", c.name, got, a.Problems())
		}
	}
}

// A file that cannot be read withdraws nothing: the last advertisements stay, with a problem.
func TestObjectsThatCannotBeReadStay(t *testing.T) {
	s := &spoken{}
	a := serving(s, announce.Settings{})
	cfg := withObjects(t, poolObjects)
	cfg.Announce.MaxAddresses, cfg.Announce.SettleSeconds = 10, 0
	a.ask(announce.Node{})
	a.Reload(cfg)
	if len(s.routes) != 2 || *s.routes[0].LocalPref != 120 {
		t.Fatalf("routes %+v", s.routes)
	}
	if err := os.WriteFile(cfg.Announce.Objects[0], []byte(poolObjects+"---\nkind: [\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	a.Reload(cfg)
	if len(s.routes) != 2 || *s.routes[0].LocalPref != 120 {
		t.Errorf("routes %+v of a file with a fault", s.routes)
	}
	if p := a.Problems(); len(p) == 0 || !strings.Contains(p[0].Reason, "pools.yaml") {
		t.Errorf("problems %+v", p)
	}
	if err := os.WriteFile(cfg.Announce.Objects[0], nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if a.Reload(cfg); len(s.routes) != 0 {
		t.Errorf("routes %+v of no objects", s.routes)
	}
}

// A reload changes the sessions too, unless it is a mistake.
func TestPeersFollowAReload(t *testing.T) {
	cfg := withObjects(t, poolObjects)
	cfg.Announce.MaxAddresses = 10
	a := serving(&spoken{}, announce.Settings{})
	a.objects = objectsOf(cfg, nil)
	all := len(a.objects.neighbors)
	less := poolObjects[:strings.LastIndex(poolObjects, "---\napiVersion: metallb.io/v1beta2\nkind: BGPPeer\nmetadata: {name: twice}")]
	for _, c := range []struct {
		name, text string
		want       int // sessions
		first      string
		refused    bool
	}{
		{"the same", poolObjects, all, "192.0.2.1", false},
		{"a field that is not done", strings.Replace(poolObjects, "holdTime: 30s", "vrf: red", 1), all, "192.0.2.1", true},
		{"cannot be read", "kind: [", all, "192.0.2.1", true},
		{"another address", strings.Replace(poolObjects, "192.0.2.1,", "192.0.2.7,", 1), all, "192.0.2.7", false},
		{"routers less", less, all - 2, "192.0.2.1", false},
	} {
		if err := os.WriteFile(cfg.Announce.Objects[0], []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		refused := a.Reload(cfg)
		if n := a.objects.neighbors; len(n) != c.want || n[0].Address.String() != c.first || (refused != "") != c.refused {
			t.Errorf("%s: %+v, refused %q", c.name, n, refused)
		}
	}
}

// A node that no BGPPeer is for serves on, and says so.
func TestANodeWithoutRoutersStarts(t *testing.T) {
	cfg := withObjects(t, strings.ReplaceAll(poolObjects, "myASN: 64512,", "myASN: 64512, nodeSelectors: [{matchLabels: {kubernetes.io/hostname: other}}],"))
	_, session, s, err := startSpeaker(&cfg.Announce, objectsOf(cfg, nil), nil, nil)
	if _, none := s.(silent); err != nil || !none || len(session.Neighbors) != 0 {
		t.Errorf("%+v, %T, %v", session, s, err)
	}
}
