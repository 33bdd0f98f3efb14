package changes

import (
	"cmp"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/cmd/weir/problem"
	"github.com/weirlb/weir/lb/table"
)

// Tiers remembers the tier in use of every Service port, and since when.
type Tiers struct {
	mu        sync.Mutex
	byService map[string][]tierInUse
}

// tierKey is a Service port as the frontends of an address family and scope see it.
type tierKey struct {
	port     uint16
	proto    uint8
	ipv6     bool
	internal bool
}

type tierInUse struct {
	tierKey
	tier, previous string
	endpoints      int
	since          time.Time
}

// tierChange is a change of the tier in use.
type tierChange struct {
	service  string
	key      tierKey
	from, to string
	// endpoints are those that get new flows, before and now.
	before, now int
}

// Published are those of a publication.
type Published struct {
	tiers          []tierChange
	added, removed []string // Services
}

// Follow notes what a publication has put or deleted, and returns the changes.
func (t *Tiers) Follow(put []table.Service, del []string, now time.Time) (c Published) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.byService == nil {
		t.byService = map[string][]tierInUse{}
	}
	for _, name := range del {
		if _, ok := t.byService[name]; ok {
			c.removed = append(c.removed, name)
		}
		delete(t.byService, name)
	}
	for i := range put {
		s := &put[i]
		next, index := tiersOf(s, now)
		if _, ok := t.byService[s.Name]; !ok {
			c.added = append(c.added, s.Name)
		}
		for _, old := range t.byService[s.Name] {
			at, ok := index[old.tierKey]
			if !ok {
				continue
			}
			n := &next[at]
			if n.tier == old.tier {
				n.since, n.previous = old.since, old.previous
				continue
			}
			n.previous = old.tier
			c.tiers = append(c.tiers, tierChange{s.Name, n.tierKey, old.tier, n.tier, old.endpoints, n.endpoints})
		}
		t.byService[s.Name] = next
	}
	return c
}

// tiersOf are the tiers of a Service's frontends, and where each is.
func tiersOf(s *table.Service, now time.Time) (out []tierInUse, index map[tierKey]int) {
	index = make(map[tierKey]int)
	for _, f := range s.Frontends {
		k := tierKey{f.Port, f.Proto, f.AddrPort.Addr().Is6(), f.ClusterScope}
		if k.port == 0 {
			k.port = f.AddrPort.Port()
		}
		if _, known := index[k]; known {
			continue
		}
		index[k] = 0
		p := &s.Pools[f.Pool]
		out = append(out, tierInUse{tierKey: k, tier: p.Tier, endpoints: len(p.Endpoints), since: now})
	}
	slices.SortFunc(out, func(a, b tierInUse) int {
		return cmp.Or(cmp.Compare(a.port, b.port), cmp.Compare(a.proto, b.proto), cmp.Compare(a.family(), b.family()), cmp.Compare(a.scope(), b.scope()))
	})
	for i := range out {
		index[out[i].tierKey] = i
	}
	return out, index
}

func (k tierKey) family() string {
	if k.ipv6 {
		return "IPv6"
	}
	return "IPv4"
}

func (k tierKey) scope() string {
	if k.internal {
		return "internal"
	}
	return "external"
}

// Of are the tiers of a Service port.
func (t *Tiers) Of(service string, port uint16, proto uint8) []api.TierInUse {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := []api.TierInUse{}
	list := t.byService[service] // in order of ports
	at, _ := slices.BinarySearchFunc(list, port, func(x tierInUse, port uint16) int { return cmp.Compare(x.port, port) })
	for _, x := range list[at:] {
		if x.port != port {
			break
		}
		if x.proto == proto {
			out = append(out, api.TierInUse{
				Family: x.family(), Scope: x.scope(), Tier: x.tier, Endpoints: x.endpoints, Since: x.since, Previous: x.previous,
			})
		}
	}
	return out
}

// WithoutKept are the Services of put but those that err, of a publication, leaves as they were.
// The cause forgets what has changed in these.
func WithoutKept(put []table.Service, err error, c *Cause) []table.Service {
	kept := map[string]bool{}
	for _, e := range problem.Flatten(err) {
		if of := (*table.ServiceError)(nil); errors.As(e, &of) && of.Kept {
			kept[of.Service] = true
			delete(c.endpoints, of.Service)
		}
	}
	if len(kept) == 0 {
		return put
	}
	return slices.DeleteFunc(slices.Clone(put), func(s table.Service) bool { return kept[s.Name] })
}
