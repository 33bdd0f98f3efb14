package announcer

import (
	"os"
	"strings"
	"testing"

	"github.com/weirlb/weir/cmd/weir/config"
	"github.com/weirlb/weir/lb/announce"
)

const (
	overlappingPool = "---\napiVersion: metallb.io/v1beta1\nkind: IPAddressPool\nmetadata: {name: early}\nspec: {addresses: [203.0.113.2/31]}\n"
	otherPool       = "---\napiVersion: metallb.io/v1beta1\nkind: IPAddressPool\nmetadata: {name: other}\nspec: {addresses: [198.51.100.0/24]}\n"
)

// objectFile replaces the file of objects, and reloads.
func objectFile(t *testing.T, a *Announcer, cfg *config.Configuration, text string) (refused string) {
	t.Helper()
	if err := os.WriteFile(cfg.Announce.Objects[0], []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return a.Reload(cfg)
}

// reasons are those of all problems.
func reasons(a *Announcer) string {
	var b strings.Builder
	for _, p := range a.Problems() {
		b.WriteString(p.Reason + "\n")
	}
	return b.String()
}

// A reload with objects that have a new fault withdraws nothing and changes no route, like one with
// a faulty configuration. The fault that the objects in use have (here BGPPeer vrf) is none.
func TestObjectsWithANewFaultChangeNothing(t *testing.T) {
	for _, c := range []struct{ name, text, fault string }{
		{"a typo in a field", strings.Replace(poolObjects, "localPref: 120", "localPreference: 130", 1), "localPreference"},
		{"a typo in a kind", strings.Replace(poolObjects, "kind: BGPAdvertisement", "kind: BGPAdvertisment", 1), "did you mean BGPAdvertisement"},
		{"an unknown alias", strings.Replace(poolObjects, `"64512:7"`, `backup`, 1), "backup"},
		{"an overlapping pool", poolObjects + overlappingPool, "overlaps"},
		{"a pool less", strings.Replace(poolObjects, "[203.0.113.0/24]", "[203.0.113.0/33]", 1), "203.0.113.0/33"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := &spoken{}
			a := serving(s, announce.Settings{})
			cfg := withObjects(t, poolObjects)
			cfg.Announce.MaxAddresses, cfg.Announce.SettleSeconds = 10, 0
			a.ask(announce.Node{})
			if refused := a.Reload(cfg); refused != "" || len(s.routes) != 2 {
				t.Fatalf("%q, routes %+v", refused, s.routes)
			}
			const stays = "the routes of before stay"
			for range 2 { // a reload by another change is no consent
				refused := objectFile(t, a, cfg, c.text+otherPool)
				if len(s.routes) != 2 || *s.routes[0].LocalPref != 120 || s.routes[0].Communities[0] != 64512<<16|7 {
					t.Errorf("routes %+v", s.routes)
				}
				if !strings.Contains(refused, stays) || !strings.Contains(refused, c.fault) {
					t.Errorf("the reload says %q", refused)
				}
				if text := reasons(a); !strings.Contains(text, stays) || !strings.Contains(text, c.fault) {
					t.Errorf("problems %s", text)
				}
			}
			mended := strings.Replace(poolObjects, "localPref: 120", "localPref: 130", 1)
			if refused := objectFile(t, a, cfg, mended); refused != "" || len(s.routes) != 2 || *s.routes[0].LocalPref != 130 || strings.Contains(reasons(a), stays) {
				t.Errorf("mended: %q, routes %+v, problems %s", refused, s.routes, reasons(a))
			}
		})
	}
}

// A fault of the objects in use stands in no other's way, and a start has nothing to keep.
func TestKnownFaultsOfObjectsDoNotKeepRoutes(t *testing.T) {
	s := &spoken{}
	a := serving(s, announce.Settings{})
	faulty := poolObjects + overlappingPool
	cfg := withObjects(t, faulty)
	cfg.Announce.MaxAddresses, cfg.Announce.SettleSeconds = 10, 0
	a.ask(announce.Node{})
	if refused := a.Reload(cfg); refused != "" {
		t.Errorf("the first objects: %q", refused)
	}
	before := len(s.routes)
	if refused := objectFile(t, a, cfg, strings.Replace(faulty, "localPref: 120", "localPref: 130", 1)); refused != "" || *s.routes[0].LocalPref != 130 || len(s.routes) != before {
		t.Errorf("%q, routes %+v", refused, s.routes)
	}
}
