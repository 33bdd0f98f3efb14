package forward

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/weirlb/weir/perf/report"
)

// render writes the result for people: ratios first.
func (r *result) render(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n%s\n", r.Machine, r.Command)
	fmt.Fprintf(&b, "%d endpoints, %g s per measurement\n\n", r.Endpoints, r.Seconds)
	for _, name := range slices.Sorted(maps.Keys(r.Ratios)) {
		if strings.Count(name, " ") > 1 { // the plain names repeat one of the others
			fmt.Fprintf(&b, "%6.2f  %s\n", r.Ratios[name], name)
		}
	}
	b.WriteString("\n")
	for _, res := range r.Results {
		fmt.Fprintf(&b, "%-8s  %s\n", res.Setting, line(res))
	}
	if len(r.Bars) > 0 {
		b.WriteString("\n")
		if err := renderBars(&b, r.Bars); err != nil {
			return err
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// line formats a result as a line.
func line(r report.Result) string {
	s := fmt.Sprintf("%-9s %-16s", r.Peer, r.Workload)
	if r.Flows > 0 {
		s += fmt.Sprintf(" %8d", r.Flows)
	} else {
		s += fmt.Sprintf(" %8s", "")
	}
	if r.Detail != "" {
		s += " " + r.Detail
	}
	if r.NsPerPacket > 0 {
		s += fmt.Sprintf("  %6.0f ns/packet (%.0f..%.0f)  %.3f Mpps", r.NsPerPacket, r.Min, r.Max, r.Mpps)
	}
	if r.PerSecond > 0 {
		s += fmt.Sprintf("  %.0f/s (%.0f..%.0f)", r.PerSecond, r.Min, r.Max)
	}
	if r.Gbps > 0 && r.Workload == report.Bulk {
		s += fmt.Sprintf("  %.2f Gbit/s (%.2f..%.2f)", r.Gbps, r.Min, r.Max)
	}
	if r.AllCPUSecondsPerGB > 0 && r.Workload == report.Bulk {
		s += fmt.Sprintf("  %.2f CPU s/GB", r.AllCPUSecondsPerGB)
	}
	if r.P99us > 0 {
		s += fmt.Sprintf("  p50 %.0f us, p99 %.0f us", r.P50us, r.P99us)
	}
	if r.LimitedBy != "" {
		s += fmt.Sprintf("  limit: %s (balancer's core %.0f %% busy, clients' %.0f %%)", r.LimitedBy, r.LBBusyPercent, r.LoadBusyPercent)
	}
	if r.LostPercent > 0.05 {
		s += fmt.Sprintf("  lost %.1f %%", r.LostPercent)
	}
	if r.OtherPercent > 0 {
		s += fmt.Sprintf("  others' %.0f %%", r.OtherPercent)
	}
	if r.StealPercent > 1 {
		s += fmt.Sprintf("  steal %.0f %%", r.StealPercent)
	}
	return s
}
