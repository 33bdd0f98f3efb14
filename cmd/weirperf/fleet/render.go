package fleet

import (
	"fmt"
	"io"
	"strings"
)

func (s Spread) String() string {
	if s.Max-s.Min < 0.0005 {
		return percent(s.Mean)
	}
	return fmt.Sprintf("%s (%s .. %s)", percent(s.Mean), percent(s.Min), percent(s.Max))
}

// percent has three digits after the point below 1, and fewer above.
func percent(v float64) string {
	switch {
	case v == 0:
		return "0"
	case v < 1:
		return fmt.Sprintf("%.3f", v)
	case v < 10:
		return fmt.Sprintf("%.2f", v)
	}
	return fmt.Sprintf("%.1f", v)
}

// render writes the report for people.
func (r *Report) render(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\nseed %d, mean lifetime %g s, %d buckets per node\n\n", r.Machine, r.Seed, r.LifetimeSeconds, r.BucketsPerNode)
	fmt.Fprintf(&b, "Maglev paper, figure 12: %% of slots that change when some of %d endpoints fail\n", paperEndpoints)
	fmt.Fprintf(&b, "%8s  %7s  %9s  %9s  %6s\n", "slots", "failed", "changed", "of others", "trials")
	for _, c := range r.Paper {
		fmt.Fprintf(&b, "%8d  %7d  %9.3f  %9.3f  %6d\n", c.Slots, c.Removed, c.ChangedPercent, c.OthersPercent, c.Trials)
	}
	fmt.Fprintf(&b, "\nRFC 2992: %% of flows that move when a node is lost\n")
	fmt.Fprintf(&b, "%8s  %8s  %8s  %9s  %8s  %9s\n", "nodes", "position", "formula", "threshold", "modulo", "resilient")
	for _, f := range r.RFC2992 {
		fmt.Fprintf(&b, "%8d  %8d  %8.2f  %9.2f  %8.2f  %9.3f\n", f.Nodes, f.Position, f.FormulaPercent, f.SimulatedPercent, f.ModuloPercent, f.ResilientPercent)
	}
	fmt.Fprintf(&b, "\nTable sizes: %% of choices for endpoints that stay which change when some are replaced\n")
	fmt.Fprintf(&b, "%9s  %8s  %7s", "endpoints", "slots", "default")
	for _, k := range sizeReplaced {
		fmt.Fprintf(&b, "  %8d", k)
	}
	fmt.Fprintf(&b, "  %8s  %8s\n", "build ms", "kB")
	for _, s := range r.Sizes {
		fmt.Fprintf(&b, "%9d  %8d  %7v", s.Endpoints, s.Slots, s.Default)
		for _, k := range sizeReplaced {
			fmt.Fprintf(&b, "  %8.3f", s.ChangedPercent[fmt.Sprint(k)])
		}
		fmt.Fprintf(&b, "  %8.2f  %8.0f\n", s.BuildMs, float64(s.Bytes)/1e3)
	}
	fmt.Fprintf(&b, "\nSweep: %% of connections with a living endpoint, mean (lowest .. highest)\n")
	fmt.Fprintf(&b, "%6s %5s %-6s %-9s %7s %5s %4s  %-24s %-24s %-24s %8s %7s\n", "nodes", "lost", "event", "ecmp", "slots", "churn", "lag",
		"nat", "dsr", "stateless", "misled", "busiest")
	for _, c := range r.Cells {
		fmt.Fprintf(&b, "%6d %5d %-6s %-9s %7d %5d %4g  %-24s %-24s %-24s %8s %7.2f\n", c.Nodes, c.Lost, c.Event, c.ECMP, c.Slots, c.Replaced, c.LagSeconds,
			c.NATPercent, c.DSRPercent, c.NoTablePercent, percent(c.MisledPercent), c.Busiest)
	}
	_, err := io.WriteString(w, b.String())
	return err
}
