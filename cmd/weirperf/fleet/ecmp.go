package fleet

import (
	"fmt"
	"math/bits"
	"slices"
)

// ecmp is how routers spread flows over the nodes that announce an address.
type ecmp string

const (
	// modulo is hash mod N: RFC 2991 section 4.
	modulo ecmp = "modulo"
	// threshold is equal regions of the hash's range: RFC 2992. Linux chooses so
	// without a resilient nexthop group.
	threshold ecmp = "threshold"
	// resilient is a table of buckets, of which those of a lost node alone get others.
	// Vendors call it resilient or consistent hashing; Linux has it as a resilient nexthop group.
	resilient ecmp = "resilient"
)

var kinds = []ecmp{modulo, threshold, resilient}

func parseKind(s string) (ecmp, error) {
	if !slices.Contains(kinds, ecmp(s)) {
		return "", fmt.Errorf("must be modulo, threshold or resilient, is %q", s)
	}
	return ecmp(s), nil
}

// group is the nodes that a router knows, immutable.
type group struct {
	kind    ecmp
	nodes   []int32 // ascending
	buckets []int32 // resilient: the node of each
}

// newGroup is a group of n nodes. perNode is the number of buckets for each.
func newGroup(kind ecmp, n, perNode int) *group {
	g := &group{kind: kind, nodes: make([]int32, n)}
	for i := range g.nodes {
		g.nodes[i] = int32(i)
	}
	if kind == resilient {
		g.buckets = make([]int32, n*perNode)
		for i := range g.buckets {
			g.buckets[i] = int32(i % n)
		}
	}
	return g
}

// pick is the node for a hash.
func (g *group) pick(hash uint64) int32 {
	switch g.kind {
	case modulo:
		return g.nodes[hash%uint64(len(g.nodes))]
	case threshold:
		i, _ := bits.Mul64(hash, uint64(len(g.nodes)))
		return g.nodes[i]
	}
	i, _ := bits.Mul64(hash, uint64(len(g.buckets)))
	return g.buckets[i]
}

// without is the group after the loss of nodes.
func (g *group) without(lost []int32) *group {
	out := &group{kind: g.kind}
	for _, n := range g.nodes {
		if !slices.Contains(lost, n) {
			out.nodes = append(out.nodes, n)
		}
	}
	if g.buckets == nil {
		return out
	}
	out.buckets = slices.Clone(g.buckets)
	next := 0
	for i, n := range out.buckets {
		if slices.Contains(lost, n) {
			out.buckets[i] = out.nodes[next%len(out.nodes)]
			next++
		}
	}
	return out
}

// with is the group after nodes have come. Each takes buckets of those that have most.
func (g *group) with(added []int32) *group {
	out := &group{kind: g.kind, nodes: append(slices.Clone(g.nodes), added...)}
	slices.Sort(out.nodes)
	if g.buckets == nil {
		return out
	}
	out.buckets = slices.Clone(g.buckets)
	has := map[int32]int{}
	for _, n := range out.buckets {
		has[n]++
	}
	// Every node keeps at most its share, rounded up; the rest goes to the new nodes.
	share, next := (len(out.buckets)+len(out.nodes)-1)/len(out.nodes), 0
	for i, n := range out.buckets {
		if has[n] <= share || slices.Contains(added, n) {
			continue
		}
		to := added[next%len(added)]
		if has[to] >= share {
			break
		}
		has[n]--
		has[to]++
		out.buckets[i] = to
		next++
	}
	return out
}

// thresholdDisruption is the share of flows that change their next hop when the next hop at
// position k of n, from 1, goes away: RFC 2992 section 3.1. Next hop i before k
// loses (i-1)/(n(n-1)) of all flows to the next one, those after k the mirror image of that, and
// k loses all of 1/n.
func thresholdDisruption(n, k int) float64 {
	before, after := float64((k-1)*(k-2))/2, float64((n-k)*(n-k-1))/2
	return (before + after + float64(n-1)) / float64(n*(n-1))
}
