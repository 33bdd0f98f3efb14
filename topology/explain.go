package topology

import (
	"fmt"
	"slices"
	"strings"
)

// Explain is Select with Result.Reasons and Result.LocalReasons filled: a sentence per
// endpoint with the reason why it gets new flows, or why not.
func Explain(p Policy, eps []Endpoint, node Node) Result {
	r := Select(p, eps, node)
	if r.Local != nil {
		r.LocalReasons = localReasons(r.Local, eps, &node)
	}
	if r.Cluster != nil {
		r.Reasons = clusterReasons(r.Cluster, &p, eps, &node)
	} else {
		r.Reasons = r.LocalReasons
	}
	return r
}

// clusterReasons has a sentence per endpoint about the ranking.
func clusterReasons(c *Chosen, p *Policy, eps []Endpoint, node *Node) []string {
	rk := rankingFor(p, eps, node)
	ready := hasReady(eps)
	ignored := ""
	if rk.mode == modeAll || rk.mode == modeDistribution {
		ignored = hintsIgnored(eps, rk)
	}
	out := make([]string, len(eps))
	for i := range eps {
		e := &eps[i]
		why := condition(e, ready, "")
		if usable(e, ready) {
			at, used := slices.BinarySearch(c.Endpoints, i)
			if place := rk.reason(e, used); place != "" {
				why += ": " + place
			}
			if used && c.Shares != nil {
				why += fmt.Sprintf("; %.1f %% of new flows, min-ready-percent %d", 100*c.Shares[at], p.MinReadyPercent)
			}
			why += ignored
		}
		out[i] = why + inferred(e)
	}
	return out
}

// localReasons has a sentence per endpoint about the Local policy.
func localReasons(c *Chosen, eps []Endpoint, node *Node) []string {
	ready := c.Tier == TierAll
	out := make([]string, len(eps))
	for i := range eps {
		e := &eps[i]
		switch {
		case e.on(node):
			out[i] = "on this node, " + condition(e, ready, " on this node")
		case node.Name == "":
			out[i] = "this node's name is not known"
		case e.NodeName == "":
			out[i] = "not on this node: its node is not known"
		default:
			out[i] = "not on this node: on " + e.NodeName
		}
		out[i] += inferred(e)
	}
	return out
}

// condition is e's state in words, and whether that lets it serve; where is
// "" or " on this node".
func condition(e *Endpoint, anyReady bool, where string) string {
	switch {
	case e.Ready:
		return "ready"
	case e.fallback() && anyReady:
		return "terminating and serving: not used while an endpoint" + where + " is ready"
	case e.fallback():
		return "terminating and serving: fallback, no ready endpoint" + where
	case e.Terminating:
		return "terminating and not serving"
	}
	return "not ready"
}

func inferred(e *Endpoint) string {
	if e.Inferred {
		return "; node inferred from address"
	}
	return ""
}

// reason says how e lies to this node, "" when that did not matter.
func (rk *ranking) reason(e *Endpoint, used bool) string {
	switch rk.mode {
	case modeNodeHints:
		return hintReason("node", rk.node.Name, e.HintNodes) + elsewhere(rk.rank(e) == 0, used)
	case modeZoneHints:
		return hintReason("zone", rk.zone, e.HintZones) + elsewhere(rk.rank(e) == 0, used)
	case modeKeys:
		return rk.keyReason(e, used)
	case modeDistribution:
		return rk.ownReason(e, used)
	}
	return ""
}

// elsewhere marks an endpoint that serves although the hints do not name this
// node, because nearer ones are too few.
func elsewhere(fits, used bool) string {
	if used && !fits {
		return ", used because too few nearer ones are ready"
	}
	return ""
}

func hintReason(kind, own string, hints []string) string {
	list := strings.Join(hints, ", ")
	plural, verb, not := "", "names", "does not name"
	if len(hints) > 1 {
		plural, verb, not = "s", "name", "do not name"
	}
	switch {
	case len(hints) == 0:
		return "no " + kind + " hint"
	case slices.Contains(hints, own) && kind == "node":
		return fmt.Sprintf("node hint%s %s %s this node", plural, list, verb)
	case slices.Contains(hints, own):
		return fmt.Sprintf("zone hint%s %s %s this node's zone", plural, list, verb)
	case kind == "node":
		return fmt.Sprintf("node hint%s %s %s this node %s", plural, list, not, own)
	}
	return fmt.Sprintf("zone hint%s %s %s this node's zone %s", plural, list, not, own)
}

// hintsIgnored says why hints that are there were not followed, "" when no
// ready endpoint has any.
func hintsIgnored(eps []Endpoint, rk *ranking) string {
	nodes, zones, missing, ready := 0, 0, "", 0
	for i := range eps {
		e := &eps[i]
		if !e.Ready {
			continue
		}
		ready++
		if len(e.HintNodes) > 0 {
			nodes++
		}
		if len(e.HintZones) > 0 {
			zones++
		} else if missing == "" {
			missing = e.AddrPort.String()
		}
	}
	switch {
	case zones == 0 && nodes == 0:
		return ""
	case zones == 0 && nodes < ready:
		return "; hints ignored: some ready endpoints have none"
	case zones == 0:
		return "; hints ignored: none names this node " + rk.node.Name
	case zones < ready:
		return "; hints ignored: ready endpoint " + missing + " has no zone hint"
	case rk.zone == "":
		return "; hints ignored: this node has no label " + LabelZone
	}
	return "; hints ignored: none names this node's zone " + rk.zone
}

// keyReason compares e's labels with this node's.
func (rk *ranking) keyReason(e *Endpoint, used bool) string {
	n := rk.keyRank(e)
	switch {
	case n == unranked:
		return "no topology key matches: " + rk.mismatch(e)
	case rk.keys[n] == AnyKey && used:
		return `topology key "*"`
	case rk.keys[n] == AnyKey:
		return `topology key "*" not reached: a key before it matches other endpoints`
	case used:
		return fmt.Sprintf("topology key %s: %s as this node", rk.keys[n], rk.node.Labels[rk.keys[n]])
	}
	return fmt.Sprintf("topology key %s not reached: a key before it matches other endpoints", rk.keys[n])
}

// mismatch names the two values of the first key, or which of them lacks.
func (rk *ranking) mismatch(e *Endpoint) string {
	k := rk.keys[0]
	own, known := rk.node.Labels[k]
	got, has := e.Labels[k]
	switch {
	case len(rk.node.Labels) == 0:
		return "this node has no labels"
	case !known:
		return "this node has no label " + k
	case !has:
		return "the endpoint's node has no label " + k
	}
	return fmt.Sprintf("%s is %s, this node's is %s", k, got, own)
}

// ownReason names the tier that e is in.
func (rk *ranking) ownReason(e *Endpoint, used bool) string {
	var place string
	switch rk.tiers[rk.ownRank(e)] {
	case TierSameNode:
		place = "on this node"
	case TierSameZone:
		place = "in this node's zone " + rk.zone
	case TierSameRegion:
		place = "in this node's region " + rk.node.Labels[LabelRegion]
	default:
		place = "farther than " + strings.TrimPrefix(string(rk.tiers[max(len(rk.tiers)-2, 0)]), "same-") + " of this node"
		if e.Zone != "" {
			place += ", in zone " + e.Zone
		}
	}
	if !used {
		place += ", not used: nearer endpoints serve"
	}
	return place
}
