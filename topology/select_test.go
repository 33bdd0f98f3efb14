package topology

import (
	"strings"
	"testing"
)

// KEP-2086 (internalTrafficPolicy), KEP-1669 (terminating endpoints).
func TestTrafficPolicies(t *testing.T) {
	two := "1 ready node=n1\n2 ready node=n2"
	run(t, []selectCase{
		{"no endpoints", inside, nil, "", "none:", "", true},
		{"no endpoints, both policies", outsideLocal, nil, "", "none:", "none:", true},
		{"cluster takes every ready endpoint", inside, nil, "1 ready\n2 unready\n3 ready\n4 leaving\n5 gone", "all: 1 3", "", false},
		{"ready while terminating counts as ready (publishNotReadyAddresses)", inside, nil, "1 published\n2 unready", "all: 1", "", false},
		{"internal Local has no use for cluster endpoints", insideLocal, nil, two, "-", "all: 1", false},
		{"external Local still serves the inside from everywhere", outsideLocal, nil, two, "all: 1 2", "all: 1", false},
		{"external Local means nothing to what outside cannot reach", unreachableET, nil, two, "all: 1 2", "", false},
		{"internal Local and reachable from outside", Policy{InternalLocal: true, External: true}, nil, two, "all: 1 2", "all: 1", false},
		{"both Local", everyLocal, nil, two, "all: 1 2", "all: 1", false},
		{"none local, some elsewhere: dropped, not refused", outsideLocal, nil, "2 ready node=n2", "all: 2", "none:", false},
		{"only an unready one anywhere: refused", outsideLocal, nil, "1 unready node=n1", "none:", "none:", true},
		{"nothing is local to a node without a name", insideLocal, &Node{}, "1 ready", "-", "none:", false},
	})
}

func TestTerminatingFallback(t *testing.T) {
	run(t, []selectCase{
		{"serving and terminating when none is ready", inside, nil, "1 leaving\n2 unready\n3 gone\n4 leaving", "terminating: 1 4", "", false},
		{"not while one is ready", inside, nil, "1 leaving\n2 ready", "all: 2", "", false},
		{"terminating and not serving never", inside, nil, "1 gone", "none:", "", true},
		{"Local falls back by itself", outsideLocal, nil, "1 leaving node=n1\n2 ready node=n2", "all: 2", "terminating: 1", false},
		{"Cluster does not fall back while Local need not", outsideLocal, nil, "1 ready node=n1\n2 leaving node=n2", "all: 1", "all: 1", false},
		{"both fall back", everyLocal, nil, "1 leaving node=n1\n2 leaving node=n2", "terminating: 1 2", "terminating: 1", false},
		{"hints mean nothing to the fallback", inside, nil, "1 leaving hints=za\n2 leaving hints=zb", "terminating: 1 2", "", false},
	})
}

// KEP-2433 (zone hints), KEP-3015 and KEP-4444 (trafficDistribution).
func TestHints(t *testing.T) {
	run(t, []selectCase{
		{"zone hints", inside, nil, "1 ready hints=za\n2 ready hints=zb\n3 ready hints=zb,za", "same-zone: 1 3", "", false},
		{"one ready endpoint without a hint switches them off", inside, nil, "1 ready hints=za\n2 ready", "all: 1 2", "", false},
		{"an unready one without a hint does not", inside, nil, "1 ready hints=za\n2 ready hints=zb\n3 unready", "same-zone: 1", "", false},
		{"a terminating one without a hint does not", inside, nil, "1 ready hints=za\n2 ready hints=zb\n3 leaving", "same-zone: 1", "", false},
		{"no hint names this zone", inside, nil, "1 ready hints=zb\n2 ready hints=zc", "all: 1 2", "", false},
		{"only an unready endpoint names this zone", inside, nil, "1 unready hints=za\n2 ready hints=zb", "all: 2", "", false},
		{"this node has no zone", inside, &Node{Name: "n1"}, "1 ready hints=za", "all: 1", "", false},
		{"node hints before zone hints", inside, nil, "1 ready hints=za nodehints=n1\n2 ready hints=za nodehints=n2", "same-node: 1", "", false},
		{"zone hints where no node hint names this node", inside, nil, "1 ready hints=zb nodehints=n2\n2 ready hints=za nodehints=n3", "same-zone: 2", "", false},
		{"zone hints where one has no node hint", inside, nil, "1 ready hints=za nodehints=n1\n2 ready hints=za", "same-zone: 1 2", "", false},
		{"node hints without zone hints", inside, nil, "1 ready nodehints=n1\n2 ready nodehints=n2", "same-node: 1", "", false},
		{"node hints, none fits, no zone hints", inside, nil, "1 ready nodehints=n2\n2 ready nodehints=n3", "all: 1 2", "", false},
		{"a zone hint of one where none of the node hints fits", inside, nil, "1 ready hints=za nodehints=n2\n2 ready nodehints=n3", "all: 1 2", "", false},
		{"a node hint may name several", inside, nil, "1 ready nodehints=n2,n1\n2 ready nodehints=n2", "same-node: 1", "", false},
		{"hints do not touch Local", outsideLocal, nil, "1 ready node=n1 hints=zb\n2 ready node=n2 hints=za", "same-zone: 2", "all: 1", false},
		{"the hint counts, not the zone of the endpoint", inside, nil, "1 ready zone=zb hints=za\n2 ready zone=za hints=zb", "same-zone: 1", "", false},
	})
}

// KEP-536.
func TestTopologyKeys(t *testing.T) {
	const rack = "example.com/rack"
	spread := "1 ready node=n1 zone=za rack=k1\n2 ready node=n2 zone=za rack=k2\n3 ready node=n3 zone=zb rack=k3"
	run(t, []selectCase{
		{"first key that matches", keys(LabelHostname, LabelZone), nil, spread, "topology-key:kubernetes.io/hostname: 1", "", false},
		{"next key where the first has none", keys(LabelHostname, LabelZone), nil, "2 ready node=n2 zone=za\n3 ready node=n3 zone=zb", "topology-key:topology.kubernetes.io/zone: 2", "", false},
		{"an unready endpoint does not hold a key", keys(LabelHostname, LabelZone), nil, "1 unready node=n1 zone=za\n2 ready node=n2 zone=za", "topology-key:topology.kubernetes.io/zone: 2", "", false},
		{"any node label may be a key", keys(rack), nil, spread, "topology-key:example.com/rack: 1", "", false},
		{"no match is no endpoint", keys(LabelHostname), nil, "2 ready node=n2", "none:", "", false},
		{"a star takes the rest", keys(LabelHostname, "*"), nil, "2 ready node=n2\n3 ready", "all: 2 3", "", false},
		{"a star alone", keys("*"), nil, spread, "all: 1 2 3", "", false},
		{"a node without labels matches only the star", keys(LabelZone, "*"), &Node{Name: "n1"}, spread, "all: 1 2 3", "", false},
		{"a node without labels and no star", keys(LabelHostname), &Node{Name: "n1"}, spread, "none:", "", false},
		{"a key that this node lacks is passed over", keys("example.com/row", LabelZone), nil, spread, "topology-key:topology.kubernetes.io/zone: 1 2", "", false},
		{"an empty value equals an empty value only", keys("x"), &Node{Name: "n1", Labels: map[string]string{"x": ""}}, "1 ready", "none:", "", false},
		{"hints are ignored", keys(LabelZone), nil, "1 ready zone=za hints=zb\n2 ready zone=zb hints=za", "topology-key:topology.kubernetes.io/zone: 1", "", false},
		{"the fallback is filtered too", keys(LabelZone), nil, "1 leaving zone=za\n2 leaving zone=zb", "terminating: 1", "", false},
		{"the fallback is not for want of a match", keys(LabelZone), nil, "1 leaving zone=za\n2 ready zone=zb", "none:", "", false},
		{"Local is not filtered", Policy{InternalLocal: true, External: true, TopologyKeys: []string{LabelZone}}, nil, "1 ready node=n1 zone=zb", "none:", "all: 1", false},
	})
}

// Annotation weir.dev/traffic-distribution.
func TestOwnDistribution(t *testing.T) {
	wide := "1 ready node=n1 zone=za region=r1\n2 ready node=n2 zone=za region=r1\n3 ready node=n3 zone=zb region=r1\n4 ready node=n4 zone=zc region=r2"
	lose := func(n int) string { return strings.Replace(wide, " ready", " unready", n) }
	run(t, []selectCase{
		{"same node first", own(PreferSameNode, 0), nil, wide, "same-node: 1", "", false},
		{"then the zone", own(PreferSameNode, 0), nil, lose(1), "same-zone: 2", "", false},
		{"then the region", own(PreferSameNode, 0), nil, lose(2), "same-region: 3", "", false},
		{"then all", own(PreferSameNode, 0), nil, lose(3), "all: 4", "", false},
		{"from the zone on", own(PreferSameZone, 0), nil, wide, "same-zone: 1 2", "", false},
		{"from the region on", own(PreferSameRegion, 0), nil, wide, "same-region: 1 2 3", "", false},
		{"farther and ready before near and terminating", own(PreferSameNode, 0), nil, "1 leaving node=n1\n2 ready node=n2", "all: 2", "", false},
		{"terminating ones by nearness", own(PreferSameNode, 0), nil, "1 gone node=n1 zone=za\n2 leaving node=n2 zone=za\n3 leaving node=n3 zone=zb", "terminating: 2", "", false},
		{"hints go first where they apply", own(PreferSameNode, 0), nil, "1 ready node=n1 hints=zb\n2 ready node=n2 hints=za", "same-zone: 2", "", false},
		{"hints that do not apply leave it to this", own(PreferSameNode, 0), nil, "1 ready node=n1 hints=zb\n2 ready node=n2 hints=zc", "same-node: 1", "", false},
		{"an endpoint of unknown place is far", own(PreferSameZone, 0), nil, "1 ready\n2 ready zone=za", "same-zone: 2", "", false},
		{"a node of unknown place takes all", own(PreferSameZone, 0), &Node{Name: "n9"}, wide, "all: 1 2 3 4", "", false},
	})
}

// Annotation weir.dev/min-ready-percent.
func TestSpillOver(t *testing.T) {
	zone := func(readyHere, unreadyHere, readyThere, unreadyThere int) string {
		text, n := "", 0
		add := func(count int, words string) {
			for range count {
				n++
				text += string(rune('0'+n)) + words + "\n"
			}
		}
		add(readyHere, " ready zone=za")
		add(unreadyHere, " unready zone=za")
		add(readyThere, " ready zone=zb")
		add(unreadyThere, " unready zone=zb")
		return text
	}
	run(t, []selectCase{
		{"a quarter ready of half wanted keeps a half", own(PreferSameZone, 50), nil, zone(1, 3, 2, 0), "same-zone: 1=0.500 5=0.250 6=0.250", "", false},
		{"as many as wanted keep all", own(PreferSameZone, 50), nil, zone(2, 2, 2, 0), "same-zone: 1 2", "", false},
		{"off", own(PreferSameZone, 0), nil, zone(1, 3, 2, 0), "same-zone: 1", "", false},
		{"100 per cent: one of two keeps a half", own(PreferSameZone, 100), nil, zone(1, 1, 1, 0), "same-zone: 1=0.500 3=0.500", "", false},
		{"the next tier is short as well: in proportion", own(PreferSameZone, 100), nil, zone(1, 1, 1, 1), "same-zone: 1=0.667 3=0.333", "", false},
		{"nowhere to spill to", own(PreferSameZone, 100), nil, zone(1, 3, 0, 2), "same-zone: 1", "", false},
		{"none ready near is all or nothing", own(PreferSameZone, 100), nil, zone(0, 3, 2, 0), "all: 4 5", "", false},
		{"terminating ones count as wanting", own(PreferSameZone, 100), nil, "1 ready zone=za\n2 leaving zone=za\n3 ready zone=zb", "same-zone: 1=0.500 3=0.500", "", false},
		{"over three tiers", own(PreferSameNode, 100), nil, "1 ready node=n1\n2 unready node=n1\n3 ready node=n2 zone=za\n4 unready node=n2 zone=za\n5 ready node=n3", "same-node: 1=0.500 3=0.250 5=0.250", "", false},
		{"along topology keys", Policy{TopologyKeys: []string{LabelZone, "*"}, MinReadyPercent: 100}, nil, zone(1, 1, 1, 0), "topology-key:topology.kubernetes.io/zone: 1=0.500 3=0.500", "", false},
		{"never beyond the topology keys", Policy{TopologyKeys: []string{LabelZone}, MinReadyPercent: 100}, nil, zone(1, 1, 1, 0), "topology-key:topology.kubernetes.io/zone: 1", "", false},
		{"with hints, an unready one counts in its own zone", own(DistributionNone, 100), nil, "1 ready zone=za hints=za\n2 unready zone=za\n3 ready zone=zb hints=zb", "same-zone: 1=0.500 3=0.500", "", false},
		{"a tier's share is parted by weight", own(PreferSameZone, 50), nil, "1 ready zone=za weight=3\n2 unready zone=za weight=9\n3 unready zone=za\n4 unready zone=za\n5 ready zone=zb weight=3\n6 ready zone=zb", "same-zone: 1=0.500 5=0.375 6=0.125", "", false},
		{"not among terminating ones", own(PreferSameZone, 100), nil, "1 leaving zone=za\n2 gone zone=za\n3 leaving zone=zb", "terminating: 1", "", false},
	})
}
