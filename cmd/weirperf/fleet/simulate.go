package fleet

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
)

// Events at time 0 of a cell.
const (
	loss   = "loss"   // nodes go away
	arrive = "return" // the same nodes come back
)

// setting is a point of the sweep.
type setting struct {
	nodes, lost int
	event       string
	ecmp        ecmp
	replaced    int     // endpoints, in the mean lifetime of a flow before the event
	lag         float64 // of the slowest node's snapshot, in mean lifetimes
	perNode     int     // buckets
}

// Cell is the outcome of a setting. Shares are in percent of the flows whose endpoint
// lives after the event.
type Cell struct {
	Nodes          int     `json:"nodes"`
	Lost           int     `json:"lost"`
	Event          string  `json:"event"`
	ECMP           string  `json:"ecmp"`
	Slots          int     `json:"slots"`
	Endpoints      int     `json:"endpoints"`
	Replaced       int     `json:"replaced"`
	LagSeconds     float64 `json:"lagSeconds"`
	Flows          int     `json:"flows"`
	MovedPercent   Spread  `json:"movedPercent"` // to another node
	LivingPercent  Spread  `json:"movedFromLivingNodesPercent"`
	NATPercent     Spread  `json:"brokenNatPercent"`
	DSRPercent     Spread  `json:"brokenDsrPercent"`
	NoTablePercent Spread  `json:"brokenStatelessPercent"`
	// GonePercent is flows whose endpoint was replaced: no load balancer keeps these. They
	// are a share of all flows.
	GonePercent float64 `json:"endpointReplacedPercent"`
	// MisledPercent is new flows just after the event that a stale snapshot sends to an
	// endpoint that is gone.
	MisledPercent float64 `json:"newToReplacedPercent"`
	// Busiest is the flows of the busiest node after the event, compared with the mean.
	Busiest float64 `json:"busiestNode"`
}

// Spread is a figure over trials that differ in the nodes concerned: mean, lowest, highest.
type Spread struct {
	Mean float64 `json:"mean"`
	Min  float64 `json:"min"`
	Max  float64 `json:"max"`
}

func spread(values []float64) Spread {
	s := Spread{Min: slices.Min(values), Max: slices.Max(values)}
	for _, v := range values {
		s.Mean += v / float64(len(values))
	}
	return s
}

// counts are the flows of a trial.
type counts struct {
	flows, alive, moved, fromLiving, nat, dsr, stateless, misled int
	perNode                                                      []int32
}

// simulation is the sweep's state.
type simulation struct {
	ctx    context.Context
	seed   uint64
	flows  int
	trials int
	// older means that all flows began before the first endpoint was replaced.
	older bool
}

// cell simulates a setting. Each trial takes other nodes, at even distances in the
// group: hash-threshold depends on the position.
func (s *simulation) cell(at setting, r *rollout) (Cell, error) {
	c := Cell{
		Nodes: at.nodes, Lost: at.lost, Event: at.event, ECMP: string(at.ecmp), Replaced: at.replaced,
		Slots: r.pools[0].TableSize(), Endpoints: r.pools[0].Len(), Flows: s.flows / s.trials * s.trials,
	}
	var moved, living, nat, dsr, stateless, busiest []float64
	var all counts
	for trial := range s.trials {
		n, err := s.trial(at, r, trial)
		if err != nil {
			return c, err
		}
		percent := func(part int) float64 { return 100 * float64(part) / float64(max(n.alive, 1)) }
		moved, living = append(moved, percent(n.moved)), append(living, percent(n.fromLiving))
		nat, dsr = append(nat, percent(n.nat)), append(dsr, percent(n.dsr))
		stateless = append(stateless, percent(n.stateless))
		remaining := at.nodes
		if at.event == loss {
			remaining -= at.lost
		}
		busiest = append(busiest, float64(slices.Max(n.perNode))/(float64(n.flows)/float64(remaining)))
		all.flows, all.alive, all.misled = all.flows+n.flows, all.alive+n.alive, all.misled+n.misled
	}
	c.MovedPercent, c.LivingPercent = spread(moved), spread(living)
	c.NATPercent, c.DSRPercent, c.NoTablePercent = spread(nat), spread(dsr), spread(stateless)
	c.GonePercent = 100 * float64(all.flows-all.alive) / float64(all.flows)
	c.MisledPercent = 100 * float64(all.misled) / float64(all.flows)
	c.Busiest = spread(busiest).Mean
	return c, nil
}

// concerned are the nodes of a trial: lost of n, at even distances from the trial's position.
func concerned(n, lost, trial, trials int) []int32 {
	out := make([]int32, lost)
	for i := range out {
		position := (float64(i) + (float64(trial)+0.5)/float64(trials)) / float64(lost)
		out[i] = int32(position * float64(n))
	}
	return slices.Compact(out)
}

// trial runs the flows of a trial through the event.
//
// Times are in mean lifetimes before the event. A flow of exponential lifetime that lives at
// time 0 has an exponential age. It began on the node that the group before the event
// chose, with the endpoint that the node's snapshot of that time chose; that node has it in the
// flow table. After the event the flow table is of use only where the flow still is.
func (s *simulation) trial(at setting, r *rollout, trial int) (counts, error) {
	nodes := concerned(at.nodes, at.lost, trial, s.trials)
	whole := newGroup(at.ecmp, at.nodes, at.perNode)
	before, after := whole, whole.without(nodes)
	if at.event == arrive {
		before, after = after, after.with(nodes)
	}
	concern := make([]bool, at.nodes)
	for _, n := range nodes {
		concern[n] = true
	}
	lag := lags(at, s.seed)
	c := counts{perNode: make([]int32, at.nodes)}
	n := s.flows / s.trials
	for i := range n {
		if i&0xffff == 0 && s.ctx.Err() != nil {
			return c, s.ctx.Err()
		}
		f := makeFlow(s.seed, uint64(trial*n+i))
		from, to := before.pick(f.router), after.pick(f.router)
		c.perNode[to]++
		now := numberOf(r.pools[r.at(-lag[to])].Pick(f.choice))
		if r.gone(now) {
			c.misled++
		}
		began := 0 // the generation
		if !s.older {
			age := -math.Log(float64(f.age>>11+1) / (1 << 53))
			began = r.at(-age - lag[from])
		}
		was := numberOf(r.pools[began].Pick(f.choice))
		c.flows++
		if r.gone(was) {
			continue
		}
		c.alive++
		if now != was {
			c.stateless++
		}
		if from == to {
			continue
		}
		c.moved++
		c.nat++
		if at.event != loss || !concern[from] {
			c.fromLiving++
		}
		if now != was {
			c.dsr++
		}
	}
	return c, nil
}

// lags are how far the snapshot of each node is behind, evenly from 0 to the largest.
func lags(at setting, seed uint64) []float64 {
	out := make([]float64, at.nodes)
	for i := range out {
		out[i] = at.lag * float64(splitmix(seed+uint64(i)*7919)>>11) / (1 << 53)
	}
	return out
}

// key is the part of a sweep that shares tables.
type key struct{ slots, replaced int }

// sweep simulates every combination of the options, and calls progress before each.
func (s *simulation) sweep(o *Options, progress func(done, all int)) ([]Cell, error) {
	var out []Cell
	settings := o.settings()
	all, done := len(settings)*len(o.Slots), 0
	var r *rollout
	var have key
	for _, slots := range o.Slots {
		for _, at := range settings {
			progress(done, all)
			if want := (key{slots, at.replaced}); r == nil || have != want {
				var err error
				if r, err = newRollout(o.Endpoints, at.replaced, slots, rand.New(rand.NewPCG(s.seed, uint64(at.replaced)))); err != nil {
					return nil, fmt.Errorf("%d endpoints in %d slots: %w", o.Endpoints, slots, err)
				}
				have = want
			}
			c, err := s.cell(at, r)
			if err != nil {
				return nil, err
			}
			c.LagSeconds = at.lag * o.Lifetime.Seconds()
			out = append(out, c)
			done++
		}
	}
	progress(done, all)
	return out, nil
}
