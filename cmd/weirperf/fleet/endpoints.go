package fleet

import (
	"fmt"
	"math/rand/v2"
	"net/netip"

	"github.com/weirlb/weir/lb/table"
)

const (
	frontendPort = 443
	endpointPort = 8443
	protoTCP     = 6
)

var frontendAddr = netip.AddrFrom4([4]byte{203, 0, 113, 10})

// endpoint is the address of endpoint n.
func endpoint(n int) table.Endpoint {
	a := netip.AddrFrom4([4]byte{10, byte(n >> 16), byte(n >> 8), byte(n)})
	return table.Endpoint{AddrPort: netip.AddrPortFrom(a, endpointPort)}
}

// numbered are the endpoints 0 to n-1.
func numbered(n int) []table.Endpoint {
	out := make([]table.Endpoint, n)
	for i := range out {
		out[i] = endpoint(i)
	}
	return out
}

// numberOf is n of endpoint.
func numberOf(e *table.EndpointEntry) uint32 {
	return uint32(e.Addr[1])<<16 | uint32(e.Addr[2])<<8 | uint32(e.Addr[3])
}

// publish is the pool as weir run publishes it, with a table of slots slots; 0: the
// size that Weir chooses.
func publish(endpoints []table.Endpoint, slots int) (*table.PoolEntry, error) {
	if slots != 0 {
		return table.SizedPool(endpoints, slots)
	}
	t := table.New(table.Config{})
	frontend := netip.AddrPortFrom(frontendAddr, frontendPort)
	c, err := t.Apply([]table.Service{{
		Name: "perf/fleet", Pools: []table.Pool{{Endpoints: endpoints}},
		Frontends: []table.Frontend{{AddrPort: frontend, Proto: protoTCP, Kind: table.LoadBalancer}},
	}}, nil)
	if err != nil {
		return nil, err
	}
	if len(c.Errors) > 0 {
		return nil, c.Errors[0]
	}
	key := table.MakeKey(frontend, protoTCP)
	f := t.Load().Lookup(&key)
	if f == nil {
		return nil, fmt.Errorf("%v is not in the snapshot", frontend)
	}
	return f.Pool, nil
}

// mostGenerations bounds the tables of a rollout; a large rollout replaces several
// endpoints in a step.
const mostGenerations = 64

// rollout is a pool whose endpoints are replaced at even distances in time: generation 0 is
// before, the last is after.
type rollout struct {
	pools    []*table.PoolEntry
	replaced int
	// goneFrom is the generation from which an endpoint, by number, is gone.
	goneFrom []uint8
}

// newRollout replaces some endpoints of n in an order drawn from rng.
func newRollout(n, replaced, slots int, rng *rand.Rand) (*rollout, error) {
	steps := min(replaced, mostGenerations)
	r := &rollout{replaced: replaced, goneFrom: make([]uint8, n+replaced)}
	endpoints := numbered(n)
	for i := range r.goneFrom {
		r.goneFrom[i] = mostGenerations + 1
	}
	order, done := rng.Perm(n), 0
	for g := range steps + 1 {
		for ; done < replaced*g/max(steps, 1); done++ {
			endpoints[order[done]] = endpoint(n + done)
			r.goneFrom[order[done]] = uint8(g)
		}
		p, err := publish(endpoints, slots)
		if err != nil {
			return nil, err
		}
		r.pools = append(r.pools, p)
	}
	return r, nil
}

// last is the number of the generation after the rollout.
func (r *rollout) last() int { return len(r.pools) - 1 }

// at is the generation at a time: the rollout takes the time from -1 to 0, and the last
// step is half a distance before 0.
func (r *rollout) at(time float64) int {
	return min(max(int((time+1)*float64(r.last())+0.5), 0), r.last())
}

// gone reports whether an endpoint has left when the rollout is over.
func (r *rollout) gone(n uint32) bool { return int(r.goneFrom[n]) <= r.last() }
