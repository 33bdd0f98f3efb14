package l2

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
)

func TestElect(t *testing.T) {
	const eligible, owned, preempts, leaves = 1, 2, 4, 8
	node := func(flags int, weight uint64) standing {
		return standing{flags&eligible != 0, flags&owned != 0, flags&preempts != 0, flags&leaves != 0, weight}
	}
	for name, c := range map[string]struct {
		self     standing
		others   []standing
		want     verdict
		conflict bool
	}{
		"alone":                      {self: node(eligible, 1), want: take},
		"not eligible":               {self: node(0, 1), want: stand},
		"first choice":               {node(eligible, 2), []standing{node(eligible, 1)}, take, false},
		"second choice":              {node(eligible, 1), []standing{node(eligible, 2)}, stand, false},
		"the first is not eligible":  {node(eligible, 1), []standing{node(0, 2)}, take, false},
		"owned by the second":        {node(eligible, 2), []standing{node(eligible|owned, 1)}, stand, false},
		"owner must leave":           {node(eligible, 2), []standing{node(owned, 1)}, take, false},
		"releases":                   {node(owned, 2), []standing{node(eligible, 1)}, release, false},
		"released":                   {node(owned, 2), []standing{node(eligible|owned, 1)}, giveUp, false},
		"two leave":                  {node(owned, 2), []standing{node(owned, 1)}, giveUp, false},
		"conflict, first choice":     {node(eligible|owned, 2), []standing{node(eligible|owned, 1)}, stand, true},
		"conflict, second choice":    {node(eligible|owned, 1), []standing{node(eligible|owned, 2)}, giveUp, true},
		"stays":                      {node(eligible|owned, 1), []standing{node(eligible, 2)}, stand, false},
		"taken back":                 {node(eligible|owned, 1), []standing{node(eligible|preempts, 2)}, release, false},
		"has been taken back":        {node(eligible|owned|leaves, 1), []standing{node(eligible|owned|preempts, 2)}, giveUp, false},
		"is not taken back any more": {node(eligible|owned|leaves, 1), []standing{node(eligible, 2)}, stand, false},
		"not taken back by a second": {node(eligible|owned, 2), []standing{node(eligible|preempts, 1)}, stand, false},
		"preempts, waits":            {node(eligible|preempts, 2), []standing{node(eligible|owned, 1)}, stand, false},
		"preempts, takes":            {node(eligible|preempts, 2), []standing{node(owned, 1)}, take, false},
	} {
		if got, conflict := elect(c.self, c.others); got != c.want || conflict != c.conflict {
			t.Errorf("%s: %d %v, want %d %v", name, got, conflict, c.want, c.conflict)
		}
	}
}

// Nodes that tell each other all come to one owner per address in two rounds, whatever they begin with.
func TestElectionEnds(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 5000 {
		nodes := make([]standing, 1+rng.IntN(5))
		some := false
		for i := range nodes {
			nodes[i] = standing{eligible: rng.IntN(3) > 0, owned: rng.IntN(3) == 0, preempts: rng.IntN(4) == 0, weight: uint64(i)}
			some = some || nodes[i].eligible
		}
		eligible := make([]bool, len(nodes))
		for i := range nodes {
			eligible[i] = nodes[i].eligible
		}
		began := fmt.Sprint(nodes)
		for range 4 { // a node decides, then tells the others
			for i := range nodes {
				var others []standing
				others = append(append(others, nodes[:i]...), nodes[i+1:]...)
				self := nodes[i]
				self.eligible = eligible[i]
				v, _ := elect(self, others)
				nodes[i].eligible = eligible[i] && v != release
				nodes[i].leaves = !nodes[i].eligible
				switch v {
				case take:
					nodes[i].owned = true
				case giveUp:
					nodes[i].owned = false
				}
			}
		}
		owners := 0
		for i, n := range nodes {
			if n.owned && (eligible[i] || !some) {
				owners++
			}
		}
		if some && owners != 1 || owners > 1 {
			t.Fatalf("%d owners of %s: %v", owners, began, nodes)
		}
	}
}

// Addresses are spread evenly, and the order of nodes for an address does not depend on others.
func TestWeightSpreads(t *testing.T) {
	nodes := []string{"a/10.0.0.1", "a/10.0.0.2", "a/10.0.0.3"}
	counts := map[string]int{}
	for i := range 1000 {
		a := netip.AddrFrom4([4]byte{192, 0, byte(i >> 8), byte(i)})
		best := nodes[0]
		for _, n := range nodes {
			if weight(n, a) > weight(best, a) {
				best = n
			}
		}
		counts[best]++
	}
	for _, n := range nodes {
		if counts[n] < 250 || counts[n] > 420 {
			t.Errorf("%v", counts)
		}
	}
}
