package forward

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/weirlb/weir/cmd/weirperf/forward/peer"
	"github.com/weirlb/weir/perf/report"
)

// barPeers are the peers of --bars.
var barPeers = []string{"weir-xdp", "weir-tcx", "weir-loop", "nftables", "kernel", "haproxy", "nginx"}

// bar is a ratio that the flow cache has to reach.
type bar struct {
	work     string
	workload string
	flows    int
	detail   string
	peer     string
	against  string
	figure   barFigure
	least    float64
	aim      bool // to miss it is no failure
}

// barFigure is what of two results is compared.
type barFigure struct {
	name string
	of   func(report.Result) float64 // less is better; nil: the figure of the workload
}

var (
	mainFigure   = barFigure{"", nil}
	p99Figure    = barFigure{"p99, us", func(r report.Result) float64 { return r.P99us }}
	cpuFigure    = barFigure{"CPU s/GB", func(r report.Result) float64 { return r.AllCPUSecondsPerGB }}
	memoryFigure = barFigure{"bytes", func(r report.Result) float64 { return r.Details[peer.TableBytes] }}
)

// bars are all ratios to reach. A ratio is how many times as good the peer is.
var bars = []bar{
	{"UDP established", report.Established, 10000, "", "weir-xdp", "nftables", mainFigure, 2.2, false},
	{"UDP established", report.Established, 100000, "", "weir-xdp", "nftables", mainFigure, 2.2, false},
	{"UDP established", report.Established, 1000000, "", "weir-xdp", "nftables", mainFigure, 2.2, false},
	{"UDP established", report.Established, 100000, "", "weir-xdp", "kernel", mainFigure, 1, false},
	{"UDP established", report.Established, 10000, "", "weir-tcx", "nftables", mainFigure, 1.5, false},
	{"UDP established", report.Established, 100000, "", "weir-tcx", "nftables", mainFigure, 1.5, false},
	{"UDP established", report.Established, 1000000, "", "weir-tcx", "nftables", mainFigure, 1.5, false},
	{"UDP all new", report.New, 0, "", "weir-tcx", "nftables", mainFigure, 2, false},
	{"TCP bulk", report.Bulk, bulkStreams, "offloads", "weir-tcx", "nftables", mainFigure, 0.97, false},
	{"TCP bulk", report.Bulk, bulkStreams, "offloads", "weir-tcx", "kernel", mainFigure, 0.95, true},
	{"TCP bulk", report.Bulk, bulkStreams, "offloads", "weir-tcx", "weir-loop", mainFigure, 5, false},
	{"TCP bulk", report.Bulk, bulkStreams, "offloads", "weir-tcx", "nftables", cpuFigure, 1, false},
	{"TCP requests", report.Request, tcpClients, "", "weir-tcx", "nftables", mainFigure, 1, false},
	{"TCP requests", report.Request, tcpClients, "", "weir-tcx", "nftables", p99Figure, 1, false},
	{"TCP connections", report.Connect, tcpClients, "", "weir-tcx", "weir-loop", mainFigure, 1, false},
	{"TCP connections", report.Connect, tcpClients, "", "weir-tcx", "nftables", mainFigure, 1, true},
	{"memory per connection", report.Established, 100000, "", "weir-xdp", "weir-loop", memoryFigure, 1, false},
	{"memory per connection", report.Established, 100000, "", "weir-tcx", "weir-loop", memoryFigure, 1, false},
	{"loop alone", report.Established, 100000, "", "weir-loop", "weir-baseline", mainFigure, 0.97, false},
}

// barResult is a bar with what was measured.
type barResult struct {
	Work    string  `json:"work"`
	Flows   int     `json:"flows,omitempty"`
	Setting string  `json:"setting"`
	Figure  string  `json:"figure"`
	Peer    string  `json:"peer"`
	Against string  `json:"against"`
	Value   float64 `json:"value"`
	Other   float64 `json:"other"` // of the peer that it is compared with
	Ratio   float64 `json:"ratio"`
	Least   float64 `json:"least"`
	Aim     bool    `json:"aim,omitempty"`
	// Measured is false for a figure of which a turn came to nothing.
	Measured bool `json:"measured"`
	// ByClient: the clients were the limit of a rate, which makes the ratio no result.
	ByClient bool `json:"limitedByClient,omitempty"`
}

// Pass says whether the ratio is reached.
func (b *barResult) Pass() bool { return b.Measured && !b.ByClient && b.Ratio >= b.Least }

// checkBars compares results with every bar that belongs to the run.
func checkBars(results []report.Result, o *options) (list []barResult) {
	for _, setting := range settingsOf(results) {
		for _, b := range bars {
			if o.asksFor(&b) {
				list = append(list, b.check(results, setting))
			}
		}
	}
	return list
}

// settingsOf are the settings of results, in order.
func settingsOf(results []report.Result) (list []string) {
	for _, r := range results {
		if !slices.Contains(list, r.Setting) {
			list = append(list, r.Setting)
		}
	}
	return list
}

// asksFor: the run has what the bar compares.
func (o *options) asksFor(b *bar) bool {
	return slices.Contains(o.peers, b.peer) && slices.Contains(o.peers, b.against) &&
		slices.Contains(o.workloads, b.workload) &&
		(b.workload != report.Established || slices.Contains(o.flows, b.flows))
}

func (b *bar) check(results []report.Result, setting string) barResult {
	out := barResult{Work: b.work, Flows: b.flows, Setting: setting, Figure: b.figure.name,
		Peer: b.peer, Against: b.against, Least: b.least, Aim: b.aim}
	find := func(name string) *report.Result {
		i := slices.IndexFunc(results, func(r report.Result) bool {
			return r.Key == report.Key{Peer: name, Workload: b.workload, Setting: setting, Flows: b.flows, Detail: b.detail}
		})
		if i < 0 {
			return nil
		}
		return &results[i]
	}
	of, against := find(b.peer), find(b.against)
	if of == nil || against == nil {
		return out
	}
	if b.figure.of == nil {
		out.Figure, out.Value, out.Other, out.Ratio = of.Unit(), of.Main(), against.Main(), report.Ratio(*of, *against)
		// With a faster client a ratio that falls short would still do so, if only the other peer's
		// rate is the clients'.
		out.ByClient = of.LimitedBy == report.ByClient || out.Ratio >= b.least && !report.Comparable(*of, *against)
	} else {
		out.Value, out.Other = b.figure.of(*of), b.figure.of(*against)
		if out.Value > 0 {
			out.Ratio = out.Other / out.Value
		}
	}
	out.Measured = out.Value > 0 && out.Other > 0
	return out
}

// missed is an error if a ratio falls short. A ratio that is no result does neither.
func missed(list []barResult) error {
	n := 0
	for i := range list {
		if b := &list[i]; !b.Aim && !b.ByClient && !b.Pass() {
			n++
		}
	}
	if n == 0 {
		return nil
	}
	return fmt.Errorf("%d of %d ratios fall short", n, len(list))
}

// renderBars writes the table of the bars.
func renderBars(w io.Writer, list []barResult) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "setting\twork\tfigure\tpeer\t\tagainst\t\tratio\tleast\t")
	for i := range list {
		b := &list[i]
		work, ratio, verdict := b.Work, fmt.Sprintf("%.2f", b.Ratio), "FALLS SHORT"
		if b.Flows > 0 {
			work += fmt.Sprintf(", %d", b.Flows)
		}
		switch {
		case !b.Measured:
			ratio, verdict = "-", "NOT MEASURED"
		case b.ByClient:
			ratio, verdict = "-", "no result: the clients were the limit"
		case b.Pass():
			verdict = "pass"
		case b.Aim:
			verdict = "below the aim"
		}
		fmt.Fprintf(t, "%s\n", strings.Join([]string{b.Setting, work, b.Figure, b.Peer, number(b.Value), b.Against, number(b.Other),
			ratio, fmt.Sprintf("%.2f", b.Least), verdict}, "\t"))
	}
	return t.Flush()
}

// number has three digits or more.
func number(v float64) string {
	switch {
	case v == 0:
		return "-"
	case v < 10:
		return fmt.Sprintf("%.2f", v)
	}
	return fmt.Sprintf("%.0f", v)
}
