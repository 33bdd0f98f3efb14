package translate

import (
	"slices"
	"testing"

	"github.com/weirlb/weir/discovery"
	"github.com/weirlb/weir/lb/table"
	"github.com/weirlb/weir/topology"
)

// A pool of Local policy says whether a ready endpoint is on some node, for the announcement: of
// terminating endpoints here and none here, each node must know who takes over.
func TestALocalPoolKnowsOfReadyEndpointsElsewhere(t *testing.T) {
	const here, elsewhere = "n1", "n2"
	endpoint := func(node string, ready bool) topology.Endpoint {
		e := ep("10.1.1.1:80")
		if node == elsewhere {
			e = ep("10.1.1.2:80")
		}
		e.NodeName, e.Ready, e.Serving, e.Terminating = node, ready, true, !ready
		return e
	}
	for _, c := range []struct {
		name      string
		endpoints []topology.Endpoint
		tier      topology.Tier
		onEmpty   table.OnEmpty
		ready     bool
	}{
		{"the only one terminates here", []topology.Endpoint{endpoint(here, false)}, topology.TierTerminating, table.Drop, false},
		{"all terminate", []topology.Endpoint{endpoint(here, false), endpoint(elsewhere, false)}, topology.TierTerminating, table.Drop, false},
		{"another node has a ready one", []topology.Endpoint{endpoint(here, false), endpoint(elsewhere, true)}, topology.TierTerminating, table.Drop, true},
		{"it terminates on another node", []topology.Endpoint{endpoint(elsewhere, false)}, topology.TierNone, table.Drop, false},
		{"none", nil, topology.TierNone, table.Reject, false},
	} {
		opts := Options{Node: topology.Node{Name: here}}
		s := translated(t, opts, service("web", func(s *discovery.Service) {
			s.Policy.External, s.Policy.ExternalLocal = true, true
			s.Ports[0].Endpoints = slices.Clone(c.endpoints)
		}))
		p := s.Pools[s.Frontends[0].Pool]
		if p.Tier != string(c.tier) || p.OnEmpty != c.onEmpty || p.AnyReady != c.ready {
			t.Errorf("%s: %+v", c.name, p)
		}
	}
}
