package topology

// spill computes the shares of new flows when tiers that have too few ready
// endpoints hand a part of theirs on.
//
// A tier with a fraction h of ready endpoints takes h / (percent/100) of the flows that
// reach it, at most all, and the next tier gets the rest; so the load on a ready endpoint
// never exceeds 100/percent times its load when all are ready. Flows that no tier takes are
// given to all in proportion, since some endpoint must serve them. Endpoints of a tier
// share by their weights. (Envoy's priority load levels follow the same idea, with
// percent about 71.)
//
// Worked example, percent 50: this node's zone has 4 endpoints of which 1 is
// ready, h = 25 %, so the zone keeps 25/50 = one half of new flows and the
// other half goes to the next tier. With 2 of 4 ready it keeps everything.
//
// A tier's total counts every endpoint listed in it, ready or not: a terminating endpoint
// is capacity that is leaving.
//
// spill returns nil when no share leaves the nearest tier.
func spill(percent int, eps []Endpoint, rk *ranking) *Chosen {
	total := make([]int, len(rk.tiers))
	ready := make([]int, len(rk.tiers))
	weight := make([]float64, len(rk.tiers)) // of the ready ones
	for i := range eps {
		n := rk.rank(&eps[i])
		if n == unranked {
			continue
		}
		total[n]++
		if eps[i].Ready {
			ready[n]++
			weight[n] += eps[i].weight()
		}
	}
	share, users := tierShares(percent, total, ready)
	if users < 2 {
		return nil
	}
	c := &Chosen{}
	for i := range eps {
		if !eps[i].Ready {
			continue
		}
		n := rk.rank(&eps[i])
		if n == unranked || share[n] == 0 {
			continue
		}
		c.Endpoints = append(c.Endpoints, i)
		c.Shares = append(c.Shares, share[n]*eps[i].weight()/weight[n])
	}
	for n := range share {
		if share[n] > 0 {
			c.Tier = rk.tiers[n]
			break
		}
	}
	return c
}

// weight is the endpoint's, 1 if it has none.
func (e *Endpoint) weight() float64 { return float64(max(1, e.Weight)) }

// tierShares is the share of new flows of each tier, summing to 1, and the number of tiers
// with a share.
func tierShares(percent int, total, ready []int) (share []float64, users int) {
	share = make([]float64, len(total))
	left := 1.0
	for n := range total {
		if ready[n] == 0 {
			continue
		}
		take := float64(ready[n]*100) / float64(total[n]*percent)
		users++
		if take >= 1 {
			share[n] = left
			return share, users
		}
		share[n] = left * take
		left -= share[n]
	}
	for n := range share {
		share[n] /= 1 - left
	}
	return share, users
}
