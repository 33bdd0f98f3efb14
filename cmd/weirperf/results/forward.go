package results

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/weirlb/weir/perf/report"
)

// settings are the settings of `weirperf forward`, in the order of the report.
var settings = []struct{ name, text string }{
	{"threaded", "Client and backend receive in NAPI threads on the other CPU, as separate machines would.\n" +
		"These real-time threads poll by a timer and share that CPU with the TCP clients and servers, which limits all TCP rates."},
	{"default", "Veth pairs as the kernel creates them: the sender's CPU does the receiver's work,\n" +
		"so that the CPU of the node also receives for client and backend."},
}

// products are the columns of the tables: the name in the JSON form and the heading.
var products = []struct{ peer, heading string }{
	{"weir", "Weir"}, {"nftables", "nftables (kube-proxy's rules)"}, {"kernel", "plain forwarding"},
	{"haproxy", "HAProxy"}, {"nginx", "nginx"},
}

// figure is a row of a table: a figure of a workload.
type figure struct {
	label string
	of    func(report.Result) float64
}

// figures returns the rows that a result's workload has.
func figures(r report.Result) []figure {
	p99 := figure{"p99 latency, us (less is better)", func(r report.Result) float64 { return r.P99us }}
	switch r.Workload {
	case report.Connect:
		return []figure{{"connections per second (more is better)", report.Result.Main}, p99}
	case report.Request:
		return []figure{{"requests per second (more is better)", report.Result.Main},
			{"p99 latency at 4,000 requests per second, us (less is better)", p99.of}}
	case report.Bulk:
		return []figure{{"Gbit/s (more is better)", report.Result.Main}}
	}
	return []figure{{"ns per packet (less is better)", report.Result.Main}}
}

// forward shows a chart and a table per setting, and then every figure.
func (p *page) forward(b []byte) error {
	var r struct {
		Command   string
		Endpoints int
		Seconds   float64
		Results   []report.Result
	}
	if err := json.Unmarshal(b, &r); err != nil {
		return err
	}
	p.line("## On the wire\n\n`%s`, %d endpoints, %g s per measurement.\n", r.Command, r.Endpoints, r.Seconds)
	p.line("Every product in turn forwards between the same namespaces on the same CPU; figures are medians.")
	p.line("UDP: CPU time of that CPU per 64-byte packet that reached the end, with connections and direction as the row says.")
	p.line("TCP: the work that clients on the other CPU get done. In parentheses: how many times better Weir is.")
	p.line("Plain forwarding translates nothing and balances nothing: it is the floor.\n")
	for _, s := range settings {
		if err := p.setting(s.name, s.text, r.Results); err != nil {
			return err
		}
	}
	p.line("<details><summary>Every figure</summary>\n")
	p.every(r.Results)
	p.line("</details>\n")
	return nil
}

// setting shows the results of a setting of the testbed.
func (p *page) setting(name, text string, all []report.Result) error {
	results := slices.DeleteFunc(slices.Clone(all), func(r report.Result) bool { return r.Setting != name })
	if len(results) == 0 {
		return nil
	}
	p.line("### Setting `%s`\n\n%s\n", name, text)

	c := report.Chart{Title: "UDP, 64 bytes: CPU time per packet (" + name + " receivers)", Unit: "ns",
		Note: "less is better; lines: least to most of all turns"}
	for _, x := range results {
		if x.NsPerPacket > 0 && strings.HasPrefix(x.Workload, "udp-") {
			c.Bars = append(c.Bars, report.Bar{Group: group(x), Series: x.Peer, Value: x.NsPerPacket, Min: x.Min, Max: x.Max})
		}
	}
	if len(c.Bars) > 0 {
		if err := p.chart("forward-"+name+".svg", c); err != nil {
			return err
		}
	}
	p.compare(results)
	return nil
}

// compare writes the table of a setting: a row per workload, a column per product.
func (p *page) compare(results []report.Result) {
	p.WriteString("| Workload ")
	rule := "| --- "
	for _, product := range products {
		p.WriteString("| " + product.heading + " ")
		rule += "| --- "
	}
	p.line("|\n%s|", rule)

	for i, first := range results {
		same := func(r report.Result) bool { return group(r) == group(first) }
		if slices.IndexFunc(results, same) != i {
			continue
		}
		for _, f := range figures(first) {
			p.WriteString("| " + title(first) + ": " + f.label + " ")
			for _, product := range products {
				p.WriteString("| " + cell(results, same, f, product.peer) + " ")
			}
			p.line("|")
		}
	}
	p.line("")
}

// cell returns the figure of a product in a workload, and how many times better
// Weir is.
func cell(results []report.Result, same func(report.Result) bool, f figure, peer string) string {
	of := func(peer string) float64 {
		i := slices.IndexFunc(results, func(r report.Result) bool { return r.Peer == peer && same(r) })
		if i < 0 {
			return 0
		}
		return f.of(results[i])
	}
	v, weir := of(peer), of("weir")
	switch {
	case v == 0:
		return ""
	case peer == "weir" || weir == 0:
		return readable(v)
	case strings.Contains(f.label, "less"):
		return fmt.Sprintf("%s (%.2f)", readable(v), v/weir)
	}
	return fmt.Sprintf("%s (%.2f)", readable(v), weir/v)
}

// readable has three digits or more, and commas between thousands.
func readable(v float64) string {
	switch {
	case v < 10:
		return fmt.Sprintf("%.2f", v)
	case v < 100:
		return fmt.Sprintf("%.1f", v)
	}
	s := fmt.Sprintf("%.0f", v)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// title is the workload in words.
func title(r report.Result) string {
	switch r.Workload {
	case report.Established:
		return "UDP, " + readable(float64(r.Flows)) + " connections"
	case report.New:
		return "UDP, every packet a new connection"
	case report.Connect:
		return "TCP, a connection per request"
	case report.Request:
		return "TCP, requests over open connections"
	case report.Bulk:
		return "TCP bulk, " + r.Detail
	}
	return group(r)
}

// every shows all figures with their spread.
func (p *page) every(results []report.Result) {
	p.line("| Setting | Workload | Path | ns per packet | Mpps | per second | Gbit/s | p50, p99 us | least..most | turns | lost | others' CPU |")
	p.line("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |")
	for _, x := range results {
		p.line("| %s | %s | %s | %s | %s | %s | %s | %s | %s..%s | %d | %.1f %% | %.0f %% |", x.Setting, group(x), x.Peer,
			some(x.NsPerPacket), some(x.Mpps), some(x.PerSecond), some(x.Gbps), pair(x.P50us, x.P99us), some(x.Min), some(x.Max), x.Turns, x.LostPercent, x.OtherPercent)
	}
	p.line("")
}

func group(x report.Result) string {
	s := x.Workload
	if x.Flows > 0 {
		s += fmt.Sprintf(", %d", x.Flows)
	}
	if x.Detail != "" {
		s += ", " + x.Detail
	}
	return s
}

func some(v float64) string {
	switch {
	case v == 0:
		return ""
	case v >= 100:
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.3f", v)
}

func pair(a, b float64) string {
	if a == 0 && b == 0 {
		return ""
	}
	return fmt.Sprintf("%.0f, %.0f", a, b)
}
