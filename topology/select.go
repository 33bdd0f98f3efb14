package topology

import "slices"

// Select decides which of eps node may use under p.
//
// eps are all endpoints of a Service port and address family: kube-proxy runs a proxier per
// family and judges hints over exactly that
// set, so a consumer calls Select once per Service port and family. The order
// of eps does not matter; indices in the result refer to it.
//
// The rules for hints and for the fallback to terminating endpoints are those
// of kube-proxy 1.36 (KEP-1669, KEP-2433, KEP-4444). A Service with
// TopologyKeys is filtered by them instead (KEP-536).
func Select(p Policy, eps []Endpoint, node Node) Result {
	var r Result
	if p.UsesCluster() {
		c, _ := selectCluster(&p, eps, &node)
		r.Cluster = c
	}
	if p.UsesLocal() {
		r.Local = selectLocal(eps, &node)
	}
	r.AnyReady = hasReady(eps)
	r.HasAnyEndpoints = r.AnyReady || slices.ContainsFunc(eps, func(e Endpoint) bool { return e.fallback() })
	return r
}

// UsesCluster reports whether traffic under Cluster policy ever reaches the
// Service: from inside, or, when it is reachable from outside at all, from
// inside to its external addresses even under externalTrafficPolicy: Local
// (KEP-1669; kube-proxy short-circuits such traffic).
func (p *Policy) UsesCluster() bool { return !p.InternalLocal || p.External }

// UsesLocal reports whether traffic under Local policy ever reaches the
// Service.
func (p *Policy) UsesLocal() bool { return p.InternalLocal || p.External && p.ExternalLocal }

// ClientsUseLocal reports whether policy Local decides about clients: those from outside, or
// where the Service is not reachable from there those inside.
func (p *Policy) ClientsUseLocal() bool {
	if p.External {
		return p.ExternalLocal
	}
	return p.InternalLocal
}

// fallback reports whether e may serve when no endpoint is ready (KEP-1669).
func (e *Endpoint) fallback() bool { return !e.Ready && e.Serving && e.Terminating }

// on reports whether e runs on node. An unnamed node has no endpoints.
func (e *Endpoint) on(node *Node) bool { return node.Name != "" && e.NodeName == node.Name }

// hasReady reports whether any of eps is ready.
func hasReady(eps []Endpoint) bool {
	for i := range eps {
		if eps[i].Ready {
			return true
		}
	}
	return false
}

// selectCluster applies the ranking that p and the endpoints' hints call for
// and takes the usable endpoints of the nearest rank that has any.
func selectCluster(p *Policy, eps []Endpoint, node *Node) (*Chosen, *ranking) {
	rk := rankingFor(p, eps, node)
	ready := hasReady(eps)

	// The nearest rank that holds a usable endpoint, and how many it holds.
	nearest, count := unranked, 0
	for i := range eps {
		if !usable(&eps[i], ready) {
			continue
		}
		switch n := rk.rank(&eps[i]); {
		case n == unranked || nearest != unranked && n > nearest:
		case n == nearest:
			count++
		default:
			nearest, count = n, 1
		}
	}
	if nearest == unranked {
		return &Chosen{Tier: TierNone, Endpoints: []int{}}, rk
	}
	if ready && p.MinReadyPercent > 0 && nearest < len(rk.tiers)-1 {
		if c := spill(p.MinReadyPercent, eps, rk); c != nil {
			return c, rk
		}
	}
	c := &Chosen{Tier: rk.tiers[nearest], Endpoints: make([]int, 0, count)}
	if !ready {
		c.Tier = TierTerminating
	}
	for i := range eps {
		if usable(&eps[i], ready) && rk.rank(&eps[i]) == nearest {
			c.Endpoints = append(c.Endpoints, i)
		}
	}
	return c, rk
}

// usable reports whether e is in the set that rankings choose from: the ready
// endpoints, or the serving and terminating ones when none is ready anywhere.
func usable(e *Endpoint, anyReady bool) bool {
	if anyReady {
		return e.Ready
	}
	return e.fallback()
}

// selectLocal takes the node's own ready endpoints, else its own serving and
// terminating ones. Ready endpoints elsewhere do not matter.
func selectLocal(eps []Endpoint, node *Node) *Chosen {
	ready := false
	for i := range eps {
		if eps[i].Ready && eps[i].on(node) {
			ready = true
			break
		}
	}
	c := &Chosen{Tier: TierNone, Endpoints: []int{}}
	for i := range eps {
		if eps[i].on(node) && usable(&eps[i], ready) {
			c.Endpoints = append(c.Endpoints, i)
		}
	}
	switch {
	case len(c.Endpoints) == 0:
	case ready:
		c.Tier = TierAll
	default:
		c.Tier = TierTerminating
	}
	return c
}
