package fleet

import "fmt"

// conclusions are the advice that follows from the figures, with the figures.
func (r *Report) conclusions(line func(string, ...any)) {
	line("## Conclusions\n")
	nodes, replaced := 8, 10
	m, t, s := r.find(nodes, replaced, modulo, loss, 0, 0), r.find(nodes, replaced, threshold, loss, 0, 0), r.find(nodes, replaced, resilient, loss, 0, 0)
	if m == nil || t == nil || s == nil {
		line("The sweep has not the settings that the conclusions rest on: %d nodes, %d endpoints replaced.\n", nodes, replaced)
		return
	}
	line("**Buy resilient hashing** (also sold as consistent hashing), with %d buckets per node or more. Of %d nodes a lost", r.BucketsPerNode, nodes)
	line("node breaks %s %% of connections in `nat`; hash-threshold breaks %s %%, modulo %s %%.", percent(s.NATPercent.Mean),
		percent(t.NATPercent.Mean), percent(m.NATPercent.Mean))
	line("In the DSR modes, with %d of %s endpoints replaced in a connection's lifetime, it is %s %%, %s %% and %s %%.", replaced, readable(s.Endpoints),
		percent(s.DSRPercent.Mean), percent(t.DSRPercent.Mean), percent(m.DSRPercent.Mean))
	line("More nodes make resilient hashing better and the others worse.\n")
	line("**In the DSR modes a lost node costs nothing while endpoints stay**, with any ECMP: all nodes choose alike. Keep rollouts")
	line("and planned work on nodes apart in time. Modes `nat` and `dnat` break all connections that move.\n")
	line("**A node that comes back breaks as many connections as a node that is lost**, unless the router moves idle buckets only.")
	line("Linux has `idle_timer` of a resilient nexthop group for that; the figures here are without.\n")
	line("**A flow table is worth more than a large table.** Without it the same replacement breaks %s %% of connections, without", percent(s.NoTablePercent.Mean))
	line("any lost node.\n")
	r.sizeConclusion(line, s, m)
	if lags := r.lags(); lags[len(lags)-1] > 0 {
		if late := r.find(nodes, replaced, resilient, loss, lags[len(lags)-1], 0); late != nil {
			line("**Lag matters little for connections, and directly for new ones.** Snapshots up to %g s behind change the broken share from", late.LagSeconds)
			line("%s %% to %s %%. They send %s %% of new connections to an endpoint that is gone. Give endpoints a longer", percent(s.DSRPercent.Mean),
				percent(late.DSRPercent.Mean), percent(late.MisledPercent))
			line("termination grace period than the lag.\n")
		}
	}
	line("Not simulated: several changes of the group in sequence, unequal weights of nodes, and routers whose hash is poor.")
	line("With %d buckets per node 10,000 nodes need %s buckets; group sizes of switches end far below that.\n", r.BucketsPerNode, readable(10_000*r.BucketsPerNode))
}

// sizeConclusion compares the default table with a table four times as large.
func (r *Report) sizeConclusion(line func(string, ...any), s, m *Cell) {
	var small, large *Size
	for i := range r.Sizes {
		switch x := &r.Sizes[i]; {
		case x.Endpoints == s.Endpoints && x.Default:
			small = x
		case small != nil && large == nil && x.Endpoints == s.Endpoints && x.Slots >= 4*small.Slots-4*small.Slots/1000:
			large = x
		}
	}
	if small == nil || large == nil {
		return
	}
	k := fmt.Sprint(s.Replaced)
	verdict := "The ECMP setting gains more and costs no memory, so Weir keeps the size for all addresses."
	if gain := small.ChangedPercent[k] / large.ChangedPercent[k]; gain > m.DSRPercent.Mean/s.DSRPercent.Mean {
		verdict = "That gains more than the ECMP setting."
	}
	line("**Table size: leave it.** For %s endpoints, %s slots in place of %s reduce the changed choices", readable(s.Endpoints),
		readable(large.Slots), readable(small.Slots))
	line("from %s %% to %s %% (factor %.1f). The table takes %.1f ms to build in place of %.1f ms, at every change, and %.0f kB in place of %.0f kB.",
		percent(small.ChangedPercent[k]), percent(large.ChangedPercent[k]), small.ChangedPercent[k]/large.ChangedPercent[k], large.BuildMs, small.BuildMs, float64(large.Bytes)/1e3, float64(small.Bytes)/1e3)
	line("Resilient hashing in place of modulo is worth a factor of %.1f.\n%s\n", m.DSRPercent.Mean/s.DSRPercent.Mean, verdict)
}
