package topology

import "slices"

// AnyKey is the topology key that every endpoint matches. It may only be the
// last key (KEP-536).
const AnyKey = "*"

// unranked is the rank of an endpoint that the Service must not use from
// this node at all.
const unranked = -1

// mode is the basis of a ranking, for Explain.
type mode uint8

const (
	modeAll mode = iota
	modeNodeHints
	modeZoneHints
	modeKeys
	modeDistribution
)

// ranking orders endpoints by nearness to the node: rank 0 is the nearest.
type ranking struct {
	mode  mode
	tiers []Tier // the name of each rank
	node  *Node
	zone  string
	keys  []string // modeKeys
	from  int      // modeDistribution: the rank of tiers[0] in ownTiers
}

// ownTiers are the tiers of Weir's own traffic distribution, nearest first.
var ownTiers = []Tier{TierSameNode, TierSameZone, TierSameRegion, TierAll}

// rankingFor decides the meaning of nearness for a Service: topologyKeys if it has any,
// else hints where they apply, else Weir's own distribution if
// asked for, else nothing: all are equally near.
func rankingFor(p *Policy, eps []Endpoint, node *Node) *ranking {
	rk := &ranking{node: node, zone: node.Labels[LabelZone]}
	if len(p.TopologyKeys) > 0 {
		rk.mode, rk.keys = modeKeys, p.TopologyKeys
		for _, k := range rk.keys {
			rk.tiers = append(rk.tiers, keyTier(k))
		}
		return rk
	}
	switch rk.mode = hintsMode(eps, node.Name, rk.zone); {
	case rk.mode == modeNodeHints:
		rk.tiers = []Tier{TierSameNode, TierSameZone, TierAll}
	case rk.mode == modeZoneHints:
		rk.tiers = []Tier{TierSameZone, TierAll}
	case p.Distribution != DistributionNone:
		rk.mode, rk.from = modeDistribution, int(p.Distribution-PreferSameNode)
		rk.tiers = ownTiers[rk.from:]
	default:
		rk.tiers = ownTiers[len(ownTiers)-1:]
	}
	return rk
}

// keyTier is the tier's name for a topology key.
func keyTier(key string) Tier {
	if key == AnyKey {
		return TierAll
	}
	return Tier("topology-key:" + key)
}

// hintsMode is the safeguard of KEP-2433: hints of one kind count only if every ready
// endpoint carries a hint and any of them fits. Endpoints that are
// not ready have no say: those that terminate lose their hints.
func hintsMode(eps []Endpoint, nodeName, zone string) mode {
	allNodes, allZones, fitsNode, fitsZone := true, true, false, false
	for i := range eps {
		e := &eps[i]
		if !e.Ready {
			continue
		}
		if len(e.HintNodes) == 0 {
			allNodes = false
		}
		if len(e.HintZones) == 0 {
			allZones = false
		}
		if !allNodes && !allZones {
			return modeAll
		}
		fitsNode = fitsNode || slices.Contains(e.HintNodes, nodeName)
		fitsZone = fitsZone || slices.Contains(e.HintZones, zone)
	}
	switch {
	case allNodes && fitsNode:
		return modeNodeHints
	case allZones && fitsZone:
		return modeZoneHints
	}
	return modeAll
}

// rank is e's nearness, from 0 to len(tiers)-1, or unranked.
func (rk *ranking) rank(e *Endpoint) int {
	switch rk.mode {
	case modeNodeHints:
		return rk.nodeHintRank(e)
	case modeZoneHints:
		if rk.hintedZone(e) {
			return 0
		}
		return 1
	case modeKeys:
		return rk.keyRank(e)
	case modeDistribution:
		return rk.ownRank(e)
	}
	return 0
}

func (rk *ranking) nodeHintRank(e *Endpoint) int {
	switch {
	case slices.Contains(e.HintNodes, rk.node.Name),
		len(e.HintNodes) == 0 && !e.Ready && e.on(rk.node):
		return 0
	case rk.hintedZone(e):
		return 1
	}
	return 2
}

// hintedZone reports whether e is meant for this node's zone. An endpoint
// that is not ready has lost the hint: its own zone counts, for the totals of
// MinReadyPercent alone.
func (rk *ranking) hintedZone(e *Endpoint) bool {
	if len(e.HintZones) == 0 && !e.Ready {
		return rk.zone != "" && e.Zone == rk.zone
	}
	return slices.Contains(e.HintZones, rk.zone)
}

// keyRank is the place of the first key whose value on e equals this node's.
func (rk *ranking) keyRank(e *Endpoint) int {
	for i, k := range rk.keys {
		if k == AnyKey {
			return i
		}
		want, known := rk.node.Labels[k]
		if !known {
			continue
		}
		if got, has := e.Labels[k]; has && got == want {
			return i
		}
	}
	return unranked
}

// ownRank is nearness by node, zone and region.
func (rk *ranking) ownRank(e *Endpoint) int {
	for i := range rk.tiers {
		if rk.near(e, rk.tiers[i]) {
			return i
		}
	}
	return unranked
}

// near reports whether e is in the given tier of Weir's own distribution.
func (rk *ranking) near(e *Endpoint, t Tier) bool {
	switch t {
	case TierSameNode:
		return e.on(rk.node)
	case TierSameZone:
		return rk.zone != "" && e.Zone == rk.zone
	case TierSameRegion:
		region := rk.node.Labels[LabelRegion]
		return region != "" && e.Labels[LabelRegion] == region
	}
	return true
}
