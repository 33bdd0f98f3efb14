package programming

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"
)

// Quantiles are those of times, in milliseconds.
type Quantiles struct {
	Of  int     `json:"of"` // how many
	P50 float64 `json:"p50ms"`
	P90 float64 `json:"p90ms"`
	P99 float64 `json:"p99ms"`
	Max float64 `json:"maxms"`
}

func quantilesOf(d []time.Duration) Quantiles {
	if len(d) == 0 {
		return Quantiles{}
	}
	slices.Sort(d)
	at := func(percent int) float64 {
		return float64(d[min(len(d)*percent/100, len(d)-1)]) / float64(time.Millisecond)
	}
	return Quantiles{Of: len(d), P50: at(50), P90: at(90), P99: at(99), Max: at(100)}
}

func (q Quantiles) String() string {
	return fmt.Sprintf("p50 %.1f ms, p90 %.1f, p99 %.1f, max %.1f of %d", q.P50, q.P90, q.P99, q.Max, q.Of)
}

func (r *Result) String() string {
	return fmt.Sprintf("cold start %.2f s; to new %s", r.ColdStartSeconds, r.ToNew)
}

// ratios are those of Weir to kube-proxy at the same number of Services.
func ratios(results []Result) map[string]float64 {
	out := map[string]float64{}
	for _, w := range results {
		for _, k := range results {
			if w.Peer != peerWeir || k.Peer != peerKubeProxy || w.Services != k.Services {
				continue
			}
			for name, pair := range map[string][2]float64{
				"cold start": {w.ColdStartSeconds, k.ColdStartSeconds}, "to new p50": {w.ToNew.P50, k.ToNew.P50},
				"to new p99": {w.ToNew.P99, k.ToNew.P99}, "to old p99": {w.ToOld.P99, k.ToOld.P99},
				"connect p50": {w.Connect.P50, k.Connect.P50}, "connect p99": {w.Connect.P99, k.Connect.P99},
			} {
				if pair[1] > 0 {
					out[fmt.Sprintf("%6d Services, %s", w.Services, name)] = pair[0] / pair[1]
				}
			}
		}
	}
	return out
}

// render writes the report for people: ratios first.
func (r *report) render(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n%s\n%g changes/s for %g s\n\n", r.Machine, r.Command, r.Rate, r.Seconds)
	for _, name := range slices.Sorted(maps.Keys(r.Ratios)) {
		fmt.Fprintf(&b, "%7.3f  %s, weir/kube-proxy\n", r.Ratios[name], name)
	}
	for _, x := range r.Results {
		fmt.Fprintf(&b, "\n%d Services, %s\n", x.Services, x.Peer)
		fmt.Fprintf(&b, "  cold start  %.2f s\n", x.ColdStartSeconds)
		fmt.Fprintf(&b, "  to new      %s\n", x.ToNew)
		fmt.Fprintf(&b, "  to old      %s\n", x.ToOld)
		fmt.Fprintf(&b, "  connect     %s\n", x.Connect)
		fmt.Fprintf(&b, "  CPU         %.1f s in the turn\n", x.CPUSeconds)
		if x.Missed > 0 || x.Failed > 0 {
			fmt.Fprintf(&b, "  %d changes have not arrived, %d connections failed\n", x.Missed, x.Failed)
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}
