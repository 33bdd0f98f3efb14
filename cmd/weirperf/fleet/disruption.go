package fleet

import (
	"context"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"runtime"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/lb/table"
)

// Curve is a point of figure 12 of the Maglev paper: of a table for Endpoints endpoints,
// Removed of which fail at the same time, the share of slots that change.
type Curve struct {
	Slots          int     `json:"slots"`
	Endpoints      int     `json:"endpoints"`
	Removed        int     `json:"removed"`
	ChangedPercent float64 `json:"changedPercent"` // mean over the trials, slots of failed endpoints included
	// OthersPercent is without the slots of failed endpoints: of those of the others.
	OthersPercent float64 `json:"changedOfOthersPercent"`
	Trials        int     `json:"trials"`
}

// The paper's figure 12: 1,000 backends and two sizes.
const paperEndpoints = 1000

var (
	paperSlots   = []int{65537, 655373}
	paperRemoved = []int{1, 5, 10, 20, 30, 40, 50}
)

// slotsOf are the numbers of the endpoints in all slots of a pool.
func slotsOf(p *table.PoolEntry) []uint32 {
	out := make([]uint32, p.TableSize())
	for i := range out {
		middle, _ := bits.Div64(uint64(i), 1<<63, uint64(len(out))) // of the hashes that lead to the slot
		out[i] = numberOf(p.Pick(middle))
	}
	return out
}

// paperCurve is the figure for some failures.
func paperCurve(ctx context.Context, seed uint64, slots, removed, trials int) (Curve, error) {
	rng := rand.New(rand.NewPCG(seed, uint64(slots*1000+removed)))
	c := Curve{Slots: slots, Endpoints: paperEndpoints, Removed: removed, Trials: trials}
	endpoints := numbered(paperEndpoints)
	whole, err := publish(endpoints, slots)
	if err != nil {
		return c, err
	}
	before := slotsOf(whole)
	for range trials {
		if err := ctx.Err(); err != nil {
			return c, err
		}
		failed := map[uint32]bool{}
		for _, i := range rng.Perm(paperEndpoints)[:removed] {
			failed[uint32(i)] = true
		}
		left := slices.DeleteFunc(slices.Clone(endpoints), func(e table.Endpoint) bool {
			b := e.AddrPort.Addr().As4()
			return failed[uint32(b[2])<<8|uint32(b[3])]
		})
		p, err := publish(left, slots)
		if err != nil {
			return c, err
		}
		changed, own := 0, 0
		for i, now := range slotsOf(p) {
			switch {
			case failed[before[i]]:
				own++
			case now != before[i]:
				changed++
			}
		}
		c.ChangedPercent += 100 * float64(changed+own) / float64(slots) / float64(trials)
		c.OthersPercent += 100 * float64(changed) / float64(slots-own) / float64(trials)
	}
	return c, nil
}

// Size is a table size for a number of endpoints.
type Size struct {
	Slots     int  `json:"slots"`
	Endpoints int  `json:"endpoints"`
	Default   bool `json:"default"` // Weir chooses it for that number of endpoints
	// ChangedPercent is the share of choices for endpoints that stay which change when
	// Replaced endpoints give way to others.
	ChangedPercent map[string]float64 `json:"changedPercent"`
	BuildMs        float64            `json:"buildMs"` // CPU time, median
	Bytes          int                `json:"bytes"`
}

// sizeReplaced are the replacements for which a size is judged.
var sizeReplaced = []int{1, 10, 50}

// measureSize is the price and the use of a size.
func measureSize(ctx context.Context, seed uint64, slots, endpoints, samples int) (Size, error) {
	s := Size{Slots: slots, Endpoints: endpoints, ChangedPercent: map[string]float64{}}
	own, err := publish(numbered(endpoints), 0)
	if err != nil {
		return s, err
	}
	s.Default = own.TableSize() == slots
	s.Bytes = slots << min(1, endpoints>>8)
	for _, k := range sizeReplaced {
		sum := 0.0
		for trial := range samples {
			if err := ctx.Err(); err != nil {
				return s, err
			}
			changed, err := replacedChange(endpoints, k, slots, rand.New(rand.NewPCG(seed, uint64(trial))))
			if err != nil {
				return s, err
			}
			sum += changed
		}
		s.ChangedPercent[fmt.Sprint(k)] = sum / float64(samples)
	}
	s.BuildMs, err = buildTime(endpoints, slots)
	return s, err
}

// replacedChange is the share of slots of endpoints that stay which change when k of n
// endpoints are replaced.
func replacedChange(n, k, slots int, rng *rand.Rand) (float64, error) {
	r, err := newRollout(n, k, slots, rng)
	if err != nil {
		return 0, err
	}
	before, after := slotsOf(r.pools[0]), slotsOf(r.pools[r.last()])
	stay, changed := 0, 0
	for i := range before {
		if r.gone(before[i]) {
			continue
		}
		stay++
		if before[i] != after[i] {
			changed++
		}
	}
	return 100 * float64(changed) / float64(stay), nil
}

// buildTime is the CPU time of a thread that builds a table, in ms: the median of several.
func buildTime(n, slots int) (float64, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	endpoints := numbered(n)
	var times []float64
	for range 7 {
		runtime.GC()
		var start, end unix.Timespec
		err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &start)
		if err == nil {
			_, err = table.SizedPool(endpoints, slots)
		}
		if err == nil {
			err = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &end)
		}
		if err != nil {
			return 0, err
		}
		times = append(times, float64(end.Nano()-start.Nano())/1e6)
	}
	slices.Sort(times)
	return times[len(times)/2], nil
}

// Formula compares RFC 2992 with the flows of the simulation.
type Formula struct {
	Nodes            int     `json:"nodes"`
	Position         int     `json:"position"` // of the lost node, from 1
	FormulaPercent   float64 `json:"formulaPercent"`
	SimulatedPercent float64 `json:"simulatedPercent"`
	ModuloPercent    float64 `json:"moduloPercent"`    // simulated, of the same loss
	ResilientPercent float64 `json:"resilientPercent"` // likewise
}

// formula is the loss of the node at a position, from 1.
func formula(seed uint64, nodes, position, flows, perNode int) Formula {
	f := Formula{Nodes: nodes, Position: position, FormulaPercent: 100 * thresholdDisruption(nodes, position)}
	lost := []int32{int32(position - 1)}
	for _, kind := range kinds {
		before := newGroup(kind, nodes, perNode)
		after := before.without(lost)
		moved := 0
		for i := range flows {
			h := makeFlow(seed, uint64(i)).router
			if before.pick(h) != after.pick(h) {
				moved++
			}
		}
		percent := 100 * float64(moved) / float64(flows)
		switch kind {
		case modulo:
			f.ModuloPercent = percent
		case threshold:
			f.SimulatedPercent = percent
		case resilient:
			f.ResilientPercent = percent
		}
	}
	return f
}
