package topology

import (
	"fmt"
	"math"
	"net/netip"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// The model below says in the slowest and plainest way what Select must find:
// sets of endpoints, filtered.

func filter(eps []Endpoint, keep func(Endpoint) bool) []int {
	out := []int{}
	for i, e := range eps {
		if keep(e) {
			out = append(out, i)
		}
	}
	return out
}

func isReady(e Endpoint) bool { return e.Ready }
func mayFallBack(e Endpoint) bool {
	return e.Serving && e.Terminating && !e.Ready
}

func both(f, g func(Endpoint) bool) func(Endpoint) bool {
	return func(e Endpoint) bool { return f(e) && g(e) }
}

// modelCluster is what Cluster policy takes, spill-over apart.
func modelCluster(p Policy, eps []Endpoint, node Node) []int {
	usable := isReady
	if len(filter(eps, isReady)) == 0 {
		usable = mayFallBack
	}
	var tiers []func(Endpoint) bool
	everyone := func(Endpoint) bool { return true }
	zone, region := node.Labels[LabelZone], node.Labels[LabelRegion]
	switch {
	case len(p.TopologyKeys) > 0:
		for _, k := range p.TopologyKeys {
			tiers = append(tiers, func(e Endpoint) bool {
				mine, known := node.Labels[k]
				its, has := e.Labels[k]
				return k == "*" || known && has && mine == its
			})
		}
	default:
		ready := filter(eps, isReady)
		every := func(has func(Endpoint) bool) bool {
			return len(ready) > 0 && len(filter(eps, both(isReady, has))) == len(ready)
		}
		forNode := func(e Endpoint) bool { return slices.Contains(e.HintNodes, node.Name) }
		forZone := func(e Endpoint) bool { return slices.Contains(e.HintZones, zone) }
		if every(func(e Endpoint) bool { return len(e.HintNodes) > 0 }) {
			tiers = append(tiers, both(isReady, forNode))
		}
		if every(func(e Endpoint) bool { return len(e.HintZones) > 0 }) {
			tiers = append(tiers, both(isReady, forZone))
		}
		if p.Distribution == PreferSameNode {
			tiers = append(tiers, func(e Endpoint) bool { return node.Name != "" && e.NodeName == node.Name })
		}
		if p.Distribution == PreferSameNode || p.Distribution == PreferSameZone {
			tiers = append(tiers, func(e Endpoint) bool { return zone != "" && e.Zone == zone })
		}
		if p.Distribution != DistributionNone {
			tiers = append(tiers, func(e Endpoint) bool { return region != "" && e.Labels[LabelRegion] == region })
		}
		tiers = append(tiers, everyone)
	}
	for _, tier := range tiers {
		if found := filter(eps, both(usable, tier)); len(found) > 0 {
			return found
		}
	}
	return []int{}
}

func modelLocal(eps []Endpoint, node Node) []int {
	mine := func(e Endpoint) bool { return node.Name != "" && e.NodeName == node.Name }
	if found := filter(eps, both(mine, isReady)); len(found) > 0 {
		return found
	}
	return filter(eps, both(mine, mayFallBack))
}

func drawEndpoints(t *rapid.T) []Endpoint {
	names := rapid.SampledFrom([]string{"", "n1", "n2", "n3"})
	zones := rapid.SampledFrom([]string{"", "za", "zb"})
	hintChance := rapid.IntRange(0, 10).Draw(t, "hint chance")
	var eps []Endpoint
	for i := range rapid.IntRange(0, 8).Draw(t, "endpoints") {
		e := Endpoint{
			AddrPort:    netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), 80),
			Ready:       rapid.Bool().Draw(t, "ready"),
			Serving:     rapid.Bool().Draw(t, "serving"),
			Terminating: rapid.Bool().Draw(t, "terminating"),
			NodeName:    names.Draw(t, "node"),
			Zone:        zones.Draw(t, "zone"),
			Labels:      map[string]string{},
		}
		if e.Zone != "" {
			e.Labels[LabelZone] = e.Zone
		}
		if rapid.Bool().Draw(t, "has region") {
			e.Labels[LabelRegion] = rapid.SampledFrom([]string{"r1", "r2"}).Draw(t, "region")
		}
		if rapid.Bool().Draw(t, "has rack") {
			e.Labels["rack"] = rapid.SampledFrom([]string{"", "k1", "k2"}).Draw(t, "rack")
		}
		if rapid.IntRange(0, 9).Draw(t, "zone hint") < hintChance {
			e.HintZones = rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"za", "zb"}), 1, 2, rapid.ID[string]).Draw(t, "zones")
		}
		if rapid.IntRange(0, 9).Draw(t, "node hint") < hintChance {
			e.HintNodes = rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"n1", "n2", "n3"}), 1, 2, rapid.ID[string]).Draw(t, "nodes")
		}
		eps = append(eps, e)
	}
	return eps
}

func drawPolicy(t *rapid.T) Policy {
	p := Policy{
		InternalLocal: rapid.Bool().Draw(t, "internal local"),
		ExternalLocal: rapid.Bool().Draw(t, "external local"),
		External:      rapid.Bool().Draw(t, "external"),
		Distribution:  Distribution(rapid.IntRange(0, 3).Draw(t, "distribution")),
	}
	if rapid.Bool().Draw(t, "has keys") {
		p.TopologyKeys = rapid.SliceOfNDistinct(rapid.SampledFrom([]string{LabelZone, LabelRegion, "rack", "row"}), 0, 3, rapid.ID[string]).Draw(t, "keys")
		if rapid.Bool().Draw(t, "star") {
			p.TopologyKeys = append(p.TopologyKeys, "*")
		}
	}
	return p
}

func drawNode(t *rapid.T) Node {
	n := Node{Name: rapid.SampledFrom([]string{"", "n1"}).Draw(t, "name")}
	if rapid.IntRange(0, 4).Draw(t, "labels") > 0 {
		n.Labels = map[string]string{LabelZone: "za", LabelRegion: "r1", "rack": "k1"}
	}
	return n
}

// TestSelectAgainstModel compares Select with the model, and holds what must
// be true of every result.
func TestSelectAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p, eps, node := drawPolicy(t), drawEndpoints(t), drawNode(t)
		r := Explain(p, eps, node)
		if (r.Cluster != nil) != (!p.InternalLocal || p.External) {
			t.Fatal("cluster used: ", r.Cluster != nil)
		}
		if (r.Local != nil) != (p.InternalLocal || p.External && p.ExternalLocal) {
			t.Fatal("local used: ", r.Local != nil)
		}
		if r.Cluster != nil {
			compare(t, "cluster", r.Cluster, modelCluster(p, eps, node), eps)
		}
		if r.Local != nil {
			compare(t, "local", r.Local, modelLocal(eps, node), eps)
		}
		if some := len(filter(eps, isReady))+len(filter(eps, mayFallBack)) > 0; r.HasAnyEndpoints != some {
			t.Fatal("HasAnyEndpoints ", r.HasAnyEndpoints)
		}
		if some := len(filter(eps, isReady)) > 0; r.AnyReady != some {
			t.Fatal("AnyReady ", r.AnyReady)
		}
		if len(r.Reasons) != len(eps) || slices.Contains(r.Reasons, "") {
			t.Fatalf("reasons %q", r.Reasons)
		}
	})
}

func compare(t *rapid.T, what string, got *Chosen, want []int, eps []Endpoint) {
	if !slices.Equal(got.Endpoints, want) || got.Endpoints == nil || got.Shares != nil {
		t.Fatalf("%s: got %v, want %v of %+v", what, got, want, eps)
	}
	fallback := len(want) > 0 && !eps[want[0]].Ready
	if (got.Tier == TierNone) != (len(want) == 0) || (got.Tier == TierTerminating) != fallback {
		t.Fatalf("%s: tier %s for %v", what, got.Tier, want)
	}
}

// TestSpillProperties holds what must be true of every spill-over: the shares
// are of ready endpoints and sum to 1, the plain choice is among those that
// get flows, and no ready endpoint of the nearest tier bears more than
// 100/percent times its part unless every tier is short.
func TestSpillProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p, eps, node := drawPolicy(t), drawEndpoints(t), drawNode(t)
		p.External = true // Cluster policy is used
		plain := Select(p, eps, node).Cluster
		p.MinReadyPercent = rapid.IntRange(1, 100).Draw(t, "percent")
		got := Select(p, eps, node).Cluster
		if got.Tier != plain.Tier {
			t.Fatalf("tier %s, without spilling %s", got.Tier, plain.Tier)
		}
		if got.Shares == nil {
			if !slices.Equal(got.Endpoints, plain.Endpoints) {
				t.Fatalf("%v without shares, plain %v", got.Endpoints, plain.Endpoints)
			}
			return
		}
		sum := 0.0
		for i, n := range got.Endpoints {
			sum += got.Shares[i]
			if !eps[n].Ready || got.Shares[i] <= 0 {
				t.Fatalf("share %v of %+v", got.Shares[i], eps[n])
			}
		}
		if math.Abs(sum-1) > 1e-9 || !slices.IsSorted(got.Endpoints) || len(got.Shares) != len(got.Endpoints) {
			t.Fatal("shares ", fmt.Sprint(got))
		}
		for _, n := range plain.Endpoints {
			if !slices.Contains(got.Endpoints, n) {
				t.Fatalf("%d of the nearest tier gets nothing: %v", n, got)
			}
		}
	})
}

func BenchmarkSelect5000(b *testing.B) {
	eps := make([]Endpoint, 5000)
	for i := range eps {
		eps[i] = Endpoint{Ready: true, Serving: true, HintZones: []string{[]string{"za", "zb", "zc"}[i%3]}}
	}
	b.ReportAllocs()
	for b.Loop() {
		Select(Policy{}, eps, here)
	}
}
