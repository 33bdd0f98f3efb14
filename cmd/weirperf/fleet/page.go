package fleet

import (
	"fmt"
	"slices"
	"strings"

	"github.com/weirlb/weir/perf/report"
)

// find is the cell of a setting, with Weir's own table size unless slots says another; nil:
// it was not simulated.
func (r *Report) find(nodes, replaced int, kind ecmp, event string, lag float64, slots int) *Cell {
	for i := range r.Cells {
		c := &r.Cells[i]
		if c.Nodes == nodes && c.Lost == 1 && c.Replaced == replaced && c.ECMP == string(kind) && c.Event == event &&
			c.LagSeconds == lag && (c.Slots == slots || slots == 0 && c.Slots == r.Cells[0].Slots) {
			return c
		}
	}
	return nil
}

// values are the different values of a field of the cells, ascending.
func values[T int | float64](r *Report, of func(*Cell) T) []T {
	var out []T
	for i := range r.Cells {
		if v := of(&r.Cells[i]); !slices.Contains(out, v) {
			out = append(out, v)
		}
	}
	slices.Sort(out)
	return out
}

func (r *Report) nodes() []int    { return values(r, func(c *Cell) int { return c.Nodes }) }
func (r *Report) churn() []int    { return values(r, func(c *Cell) int { return c.Replaced }) }
func (r *Report) slots() []int    { return values(r, func(c *Cell) int { return c.Slots }) }
func (r *Report) lags() []float64 { return values(r, func(c *Cell) float64 { return c.LagSeconds }) }

// chart shows the connections that a lost node breaks, in the modes dsr.
func (r *Report) chart() report.Chart {
	c := report.Chart{
		Title: "A node is lost: connections broken in DSR modes", Unit: "%",
		Note: "less is better; endpoints replaced in a mean lifetime before; lines: lowest to highest by the node's position",
	}
	for _, nodes := range r.nodes() {
		for _, replaced := range r.churn() {
			for _, kind := range kinds {
				if x := r.find(nodes, replaced, kind, loss, 0, 0); x != nil && replaced > 0 && nodes <= 1000 && nodes > 2 {
					s := x.DSRPercent
					c.Bars = append(c.Bars, report.Bar{
						Group:  fmt.Sprintf("%d nodes, %d of %d endpoints replaced", nodes, replaced, x.Endpoints),
						Series: string(kind), Value: s.Mean, Min: s.Min, Max: s.Max,
					})
				}
			}
		}
	}
	return c
}

// page is the report as Markdown.
func (r *Report) page() string {
	b := &strings.Builder{}
	line := func(format string, args ...any) { fmt.Fprintf(b, format+"\n", args...) }
	line("# Many nodes behind ECMP\n\n<!-- Written by `weirperf fleet --results perf/results`. -->\n")
	line("A simulation over the tables that `weir run` builds. Which connections break when a node is lost, and when")
	line("endpoints change? Shares are of connections whose endpoint lives. Mean lifetime of a connection: %g s.\n", r.LifetimeSeconds)
	r.conclusions(line)
	line("![%s](fleet.svg)\n", r.chart().Title)
	r.published(line)
	r.sizeTable(line)
	r.natTable(line)
	r.dsrTable(line)
	r.lagTable(line)
	line("Machine, for the times to build tables: %s", r.Machine)
	return wrap(b.String())
}

// columns is the width of a page.
const columns = 118

// wrap fills the lines of paragraphs; headings, tables and images stay.
func wrap(text string) string {
	var out strings.Builder
	width := 0
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		if line == "" || strings.ContainsAny(line[:1], "#|!<") {
			if width > 0 {
				out.WriteByte('\n')
			}
			out.WriteString(line + "\n")
			width = 0
			continue
		}
		for word := range strings.FieldsSeq(line) {
			switch {
			case width == 0:
			case width+1+len(word) > columns:
				out.WriteByte('\n')
				width = 0
			default:
				out.WriteByte(' ')
				width++
			}
			out.WriteString(word)
			width += len(word)
		}
	}
	if width > 0 {
		out.WriteByte('\n')
	}
	return out.String()
}

// published compares with published figures.
func (r *Report) published(line func(string, ...any)) {
	line("## Comparison with published figures\n")
	line("Figure 12 of the Maglev paper: percent of slots that change when some of %s endpoints fail. The paper has a plot.", readable(paperEndpoints))
	line("An independent implementation gives 3.34, 4.67, 5.89, 7.11 and 8.24 %% for 1 to 5 %% failures in 65,537 slots.\n")
	line("| Failed | %s slots | %s slots |\n| --- | --- | --- |", readable(paperSlots[0]), readable(paperSlots[1]))
	for _, removed := range paperRemoved {
		row := fmt.Sprintf("| %d |", removed)
		for _, slots := range paperSlots {
			for _, c := range r.Paper {
				if c.Slots == slots && c.Removed == removed {
					row += fmt.Sprintf(" %s |", percent(c.ChangedPercent))
				}
			}
		}
		line("%s", row)
	}
	line("\nRFC 2992: percent of flows that move when a node is lost.\n")
	line("| Nodes | Position | Formula | Hash-threshold | Modulo | Resilient |\n| --- | --- | --- | --- | --- | --- |")
	for _, f := range r.RFC2992 {
		line("| %s | %s | %.2f | %.2f | %.2f | %s |", readable(f.Nodes), readable(f.Position), f.FormulaPercent, f.SimulatedPercent, f.ModuloPercent, percent(f.ResilientPercent))
	}
	line("")
}

func (r *Report) sizeTable(line func(string, ...any)) {
	line("## Table sizes\n\nPercent of choices for endpoints that stay which change when 1, 10 or 50 endpoints are replaced.\n")
	line("| Endpoints | Slots | 1 | 10 | 50 | Build (CPU time) | Memory |\n| --- | --- | --- | --- | --- | --- | --- |")
	for _, s := range r.Sizes {
		own := ""
		if s.Default {
			own = " (default)"
		}
		line("| %s | %s%s | %s | %s | %s | %.1f ms | %.0f kB |", readable(s.Endpoints), readable(s.Slots), own, percent(s.ChangedPercent["1"]),
			percent(s.ChangedPercent["10"]), percent(s.ChangedPercent["50"]), s.BuildMs, float64(s.Bytes)/1e3)
	}
	line("")
}

// natTable shows losses and returns in the mode nat, which does not depend on endpoints.
func (r *Report) natTable(line func(string, ...any)) {
	line("## Mode `nat`: a node is lost, or comes back\n\nPercent of connections broken; lowest to highest by the position of the node.\n")
	line("| Nodes | Event | Modulo | Hash-threshold | Resilient |\n| --- | --- | --- | --- | --- |")
	for _, nodes := range r.nodes() {
		for _, event := range []string{loss, arrive} {
			row := fmt.Sprintf("| %s | %s |", readable(nodes), event)
			for _, kind := range kinds {
				row += " "
				if c := r.find(nodes, r.churn()[0], kind, event, 0, 0); c != nil {
					row += c.NATPercent.String()
				}
				row += " |"
			}
			line("%s", row)
		}
	}
	line("")
}

// dsrTable shows losses in the DSR modes, for all table sizes.
func (r *Report) dsrTable(line func(string, ...any)) {
	line("## DSR modes: a node is lost\n\nPercent of connections broken. The last column is a balancer without a flow table, at any time.\n")
	line("| Nodes | Replaced endpoints | Slots | Modulo | Hash-threshold | Resilient | No flow table |\n| --- | --- | --- | --- | --- | --- | --- |")
	for _, nodes := range r.nodes() {
		for _, replaced := range r.churn() {
			for _, slots := range r.slots() {
				row := fmt.Sprintf("| %s | %s | %s |", readable(nodes), readable(replaced), readable(slots))
				stateless := ""
				for _, kind := range kinds {
					row += " "
					if c := r.find(nodes, replaced, kind, loss, 0, slots); c != nil {
						row, stateless = row+percent(c.DSRPercent.Mean), percent(c.NoTablePercent.Mean)
					}
					row += " |"
				}
				line("%s %s |", row, stateless)
			}
		}
	}
	line("")
}

// lagTable shows snapshots that lag.
func (r *Report) lagTable(line func(string, ...any)) {
	lags := r.lags()
	if lags[len(lags)-1] == 0 {
		return
	}
	line("## Snapshots that lag\n\nEach node is behind by a constant time, from 0 to the figure given. 8 nodes or the next larger number,")
	line("DSR modes, a node is lost while endpoints are replaced. *Misled* is new connections to an endpoint that is gone.\n")
	line("| Replaced endpoints | Lag | Modulo | Hash-threshold | Resilient | Misled |\n| --- | --- | --- | --- | --- | --- |")
	i, _ := slices.BinarySearch(r.nodes(), 8)
	nodes := r.nodes()[min(i, len(r.nodes())-1)]
	for _, replaced := range r.churn() {
		for _, lag := range lags {
			row, misled := fmt.Sprintf("| %s | %g s |", readable(replaced), lag), ""
			for _, kind := range kinds {
				row += " "
				if c := r.find(nodes, replaced, kind, loss, lag, 0); c != nil {
					row, misled = row+percent(c.DSRPercent.Mean), percent(c.MisledPercent)
				}
				row += " |"
			}
			line("%s %s |", row, misled)
		}
	}
	line("")
}

// readable has commas between thousands.
func readable(n int) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
