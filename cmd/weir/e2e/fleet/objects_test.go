package fleet

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/weirlb/weir/perf/netlab"
	"github.com/weirlb/weir/perf/netlab/patience"
	"github.com/weirlb/weir/perf/netlab/router"
)

// MetalLB's objects alone give a node routers, and prefixes beside those of the configuration.
func TestWireObjectsOfMetalLBAreAnnounced(t *testing.T) {
	file := filepath.Join(t.TempDir(), "pools.yaml")
	text := `apiVersion: metallb.io/v1beta1
kind: IPAddressPool
metadata: {name: public}
spec: {addresses: [10.99.0.0/24, "fd99::/64"]}
---
apiVersion: metallb.io/v1beta1
kind: BGPAdvertisement
metadata: {name: outside}
spec: {aggregationLength: 24, aggregationLengthV6: 64}
`
	for i, a := range []netip.Addr{netlab.Host4(netlab.FleetNet, netlab.FleetRouter), netlab.Host6(netlab.FleetNet, netlab.FleetRouter)} {
		text += fmt.Sprintf(`---
apiVersion: metallb.io/v1beta2
kind: BGPPeer
metadata: {name: router%d}
spec: {myASN: %d, peerASN: %d, peerAddress: "%s", holdTime: 9s}
`, i, router.NodeASN, router.ASN, a)
	}
	must(t, os.WriteFile(file, []byte(text), 0o600))
	b := newBedOf(t, 1, "{notReadySeconds: 0, timeoutSeconds: 0}", fmt.Sprintf("speaker: bgp\n  objects: [%s]", file))
	b.until(0)
	for _, p := range []netip.Prefix{netip.MustParsePrefix("10.99.0.0/24"), netip.MustParsePrefix("fd99::/64")} {
		for deadline := time.Now().Add(patience.For(20 * time.Second)); ; time.Sleep(5 * time.Millisecond) {
			hops, err := router.NextHops(b.Router, p)
			must(t, err)
			if len(hops) == 1 {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("%v goes to %v", p, hops)
			}
		}
	}
	want := []string{"10.99.0.0/24", vip4.String() + "/32", "fd99::/64", vip6.String() + "/128"}
	if got := b.announce(0).Routes; !slices.Equal(got, want) {
		t.Errorf("routes %v, want %v", got, want)
	}
}
