package endpoints

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/weirlb/weir/cmd/weirperf/machine"
)

// report is the JSON form.
type report struct {
	Machine machine.Machine `json:"machine"`
	Command string          `json:"command"`
	Results []Result        `json:"connections,omitempty"`
	Loads   []Load          `json:"probes,omitempty"`
}

// String is the result in a line.
func (r Result) String() string {
	s := fmt.Sprintf("%d connections, %d failed, the endpoint was tried for %.1f s; %d affected, the last %.1f s after the fault; over 1.5 s: %.1f %% in the first 10 s, %.1f %% after; the longest %.1f s",
		r.Connections, r.Failed, r.LastTried, r.Affected, r.LastAffected, r.SlowFirst, r.SlowAfter, r.MaxSeconds)
	if r.FirstError != "" {
		s += "; " + r.FirstError
	}
	return s
}

// render writes the report for people.
func (r *report) render(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n%s\n", r.Machine, r.Command)
	for _, part := range []string{partKilled, partSilent} {
		of := slices.DeleteFunc(slices.Clone(r.Results), func(x Result) bool { return x.Part != part })
		if len(of) > 0 {
			fmt.Fprintf(&b, "\n%-7s  %-8s  %11s  %6s  %11s  %8s  %15s  %13s  %12s  %9s\n", part, "", "connections", "failed",
				"tried for s", "affected", "last affected s", "slow first %", "slow after %", "longest s")
		}
		for _, x := range of {
			fmt.Fprintf(&b, "%-7s  %-8s  %11d  %6d  %11.1f  %8d  %15.1f  %13.1f  %12.1f  %9.1f\n", "", x.Peer, x.Connections, x.Failed,
				x.LastTried, x.Affected, x.LastAffected, x.SlowFirst, x.SlowAfter, x.MaxSeconds)
		}
	}
	for i, m := range medians(r.Loads) {
		if i == 0 {
			fmt.Fprintf(&b, "\nprobes   CPU, %% of a core: median (least - most)\n")
		}
		fmt.Fprintf(&b, "         %s\n", m)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// medians are those of the turns of each peer and kind of check, as lines.
func medians(loads []Load) (lines []string) {
	by := map[Load][]float64{}
	var order []Load
	rate := map[Load]float64{}
	for _, l := range loads {
		k := Load{Peer: l.Peer, Checks: cmp.Or(l.Checks, "none")}
		if by[k] == nil {
			order = append(order, k)
		}
		by[k] = append(by[k], l.Percent)
		rate[k] = l.PerSecond
	}
	for _, k := range order {
		list := by[k]
		slices.Sort(list)
		lines = append(lines, fmt.Sprintf("%-8s  checks: %-8s  %6.2f (%.2f - %.2f), %.0f accepted/s", k.Peer, k.Checks, list[len(list)/2], list[0], list[len(list)-1], rate[k]))
	}
	return lines
}
