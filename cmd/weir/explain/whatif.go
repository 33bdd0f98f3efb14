package explain

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/discovery"
	"github.com/weirlb/weir/topology"
)

// Change is an imagined change of endpoints.
//
//   - drain=ADDR or drain=ADDR:PORT: the endpoint becomes terminating, as a
//     Pod does that is deleted: it goes on only while nothing else is ready.
//   - node=NAME, zone=NAME: all endpoints there are gone.
type Change struct {
	kind string
	name string
	addr netip.Addr
	port uint16 // 0: any
}

// ParseChange parses the value of --what-if.
func ParseChange(s string) (*Change, error) {
	kind, name, ok := strings.Cut(s, "=")
	if !ok || name == "" {
		return nil, fmt.Errorf("must be drain=ADDRESS, node=NAME or zone=NAME, is %q", s)
	}
	c := &Change{kind: kind, name: name}
	switch kind {
	case "node", "zone":
	case "drain":
		if c.addr, c.port, ok = addrOf(name); !ok {
			return nil, fmt.Errorf("drain: must be ADDRESS or ADDRESS:PORT, is %q", name)
		}
	default:
		return nil, fmt.Errorf("must be drain=ADDRESS, node=NAME or zone=NAME, is %q", s)
	}
	return c, nil
}

// String is the change as it was given.
func (c *Change) String() string { return c.kind + "=" + c.name }

// hits reports whether e is concerned.
func (c *Change) hits(e *topology.Endpoint) bool {
	switch c.kind {
	case "node":
		return e.NodeName == c.name
	case "zone":
		return e.Zone == c.name
	}
	return e.AddrPort.Addr() == c.addr && (c.port == 0 || c.port == e.AddrPort.Port())
}

// find returns an error if no endpoint of these Services is concerned, and the change is not of the
// node that chooses: it is probably misspelt.
func (c *Change) find(services []*discovery.Service, node *topology.Node) error {
	if c.kind == "node" && c.name == node.Name || c.kind == "zone" && c.name == node.Labels[topology.LabelZone] {
		return nil
	}
	for _, svc := range services {
		for i := range svc.Ports {
			for j := range svc.Ports[i].Endpoints {
				if c.hits(&svc.Ports[i].Endpoints[j]) {
					return nil
				}
			}
		}
	}
	what := "no endpoint is on node "
	switch c.kind {
	case "zone":
		what = "no endpoint is in zone "
	case "drain":
		what = "there is no endpoint "
	}
	return fmt.Errorf("what-if %s: %s%s: %w", c, what, c.name, api.ErrNotFound)
}

// apply returns the endpoints as they would be.
func (c *Change) apply(eps []topology.Endpoint) []topology.Endpoint {
	out := make([]topology.Endpoint, 0, len(eps))
	for _, e := range eps {
		if c.hits(&e) {
			if c.kind != "drain" {
				continue
			}
			// Ready is false of a terminating endpoint; it goes on serving if it did.
			e.Serving = e.Serving && (e.Ready || e.Terminating)
			e.Ready, e.Terminating = false, true
		}
		out = append(out, e)
	}
	return out
}

// WhatIf is the effect of a change on a port; null where the policy is not
// in use.
type WhatIf struct {
	Cluster *Move `json:"cluster"`
	Local   *Move `json:"local"`
}

// Move is the share of the new flows that would go elsewhere. Shares are of the flows of an
// address family; where both have endpoints they are the
// mean of the two.
type Move struct {
	Tier  string  `json:"tier"`  // afterwards
	Moved float64 `json:"moved"` // 0..1; 1 with an empty To: nobody would serve
	From  []Share `json:"from"`  // the loss of each endpoint
	To    []Share `json:"to"`    // the gain of each endpoint
}

// Share is a part of the new flows, 0..1.
type Share struct {
	Endpoint string  `json:"endpoint"`
	Share    float64 `json:"share"`
}

// moved reports whether new flows of the Service would go elsewhere, or be served in another tier.
func (s *Service) moved() bool {
	return slices.ContainsFunc(s.Ports, func(p Port) bool {
		return p.WhatIf != nil && (p.WhatIf.Cluster.differs(p.Cluster) || p.WhatIf.Local.differs(p.Local))
	})
}

// differs reports whether a move leads away from a choice; both may be nil.
func (m *Move) differs(now *Choice) bool {
	return m != nil && (m.Moved > 0 || now != nil && m.Tier != now.Tier)
}

func whatIf(p topology.Policy, eps []topology.Endpoint, node topology.Node, c *Change) *WhatIf {
	families := split(eps)
	var out WhatIf
	for _, f := range families {
		after := c.apply(f.eps)
		was, now := topology.Select(p, f.eps, node), topology.Select(p, after, node)
		part := 1 / float64(len(families))
		out.Cluster = out.Cluster.add(move(was.Cluster, now.Cluster, f.eps, after, part))
		out.Local = out.Local.add(move(was.Local, now.Local, f.eps, after, part))
	}
	return &out
}

// move compares two choices, each flow of this family counting part.
func move(was, now *topology.Chosen, before, after []topology.Endpoint, part float64) *Move {
	if was == nil || now == nil {
		return nil
	}
	m := &Move{Tier: string(now.Tier), From: []Share{}, To: []Share{}}
	old, cur := sharesOf(was, before), sharesOf(now, after)
	const least = 1e-9 // of rounding
	for ap, s := range old {
		if lost := s - cur[ap]; lost > least {
			m.From = append(m.From, Share{ap.String(), lost * part})
			m.Moved += lost * part
		}
	}
	for ap, s := range cur {
		if gained := s - old[ap]; gained > least {
			m.To = append(m.To, Share{ap.String(), gained * part})
		}
	}
	m.sort()
	return m
}

func sharesOf(c *topology.Chosen, eps []topology.Endpoint) map[netip.AddrPort]float64 {
	out := make(map[netip.AddrPort]float64, len(c.Endpoints))
	for i, n := range c.Endpoints {
		share := 1 / float64(len(c.Endpoints))
		if c.Shares != nil {
			share = c.Shares[i]
		}
		out[eps[n].AddrPort] = share
	}
	return out
}

// add puts two families' moves together; m or n may be nil.
func (m *Move) add(n *Move) *Move {
	if m == nil || n == nil {
		if m == nil {
			return n
		}
		return m
	}
	m.Moved += n.Moved
	m.From = append(m.From, n.From...)
	m.To = append(m.To, n.To...)
	m.sort()
	if m.Tier == string(topology.TierNone) {
		m.Tier = n.Tier
	}
	return m
}

func (m *Move) sort() {
	byAddress := func(a, b Share) int {
		x, _ := netip.ParseAddrPort(a.Endpoint)
		y, _ := netip.ParseAddrPort(b.Endpoint)
		return x.Compare(y)
	}
	slices.SortFunc(m.From, byAddress)
	slices.SortFunc(m.To, byAddress)
}
