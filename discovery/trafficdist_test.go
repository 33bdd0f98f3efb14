package discovery

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/endpointslice/trafficdist"
	"pgregory.net/rapid"

	"github.com/weirlb/weir/topology"
)

// TestTrafficDistribution lets the slice controller's own code set the hints
// for spec.trafficDistribution (KEP-3015, KEP-4444) and holds that this node
// then uses what the API promises: with PreferSameNode the ready endpoints of
// the node, else, as with PreferSameZone and PreferClose, those of the zone,
// else all.
func TestTrafficDistribution(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		kind := rapid.SampledFrom([]string{"", corev1.ServiceTrafficDistributionPreferClose,
			corev1.ServiceTrafficDistributionPreferSameZone, corev1.ServiceTrafficDistributionPreferSameNode}).Draw(t, "distribution")
		slice := aSlice("web-1", "web", "http:8080", "")
		var onNode, inZone, ready []netip.AddrPort
		for i := range rapid.IntRange(0, 12).Draw(t, "endpoints") {
			node := rapid.IntRange(1, 6).Draw(t, "node") // two nodes per zone
			up := rapid.Bool().Draw(t, "ready")
			text := fmt.Sprintf("10.0.0.%d node=n%d zone=z%d ready=%v", i+1, node, (node+1)/2, up)
			slice.Endpoints = append(slice.Endpoints, aSlice("", "", "", text).Endpoints...)
			if !up {
				continue
			}
			addr := netip.MustParseAddrPort(fmt.Sprintf("10.0.0.%d:8080", i+1))
			ready = append(ready, addr)
			if node <= 2 {
				inZone = append(inZone, addr)
			}
			if node == 1 {
				onNode = append(onNode, addr)
			}
		}
		created, _, _ := trafficdist.ReconcileHints(&kind, []*discoveryv1.EndpointSlice{slice}, nil, nil)
		s := load(aService("web", "http:80"), created[0], aNode("n1", zone+"=z1"))
		svc := web(s)
		eps := svc.Ports[0].Endpoints
		chosen := topology.Select(svc.Policy, eps, topology.Node{Name: "n1", Labels: map[string]string{zone: "z1"}}).Cluster
		var got []netip.AddrPort
		for _, i := range chosen.Endpoints {
			got = append(got, eps[i].AddrPort)
		}

		want := ready
		switch {
		case kind == corev1.ServiceTrafficDistributionPreferSameNode && len(onNode) > 0:
			want = onNode
		case kind != "" && len(inZone) > 0:
			want = inZone
		}
		if !slices.Equal(got, want) {
			t.Fatalf("%s: got %v, want %v", kind, got, want)
		}
	})
}
