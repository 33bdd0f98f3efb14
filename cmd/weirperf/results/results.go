// Package results makes one readable report of what the other commands have
// printed as JSON. It is the command `weirperf report`.
package results

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/weirlb/weir/cmd/weirperf/machine"
	"github.com/weirlb/weir/perf/report"
)

// Command is `weirperf report`.
func Command() *cobra.Command {
	var how string
	cmd := &cobra.Command{
		Use:   "report DIR",
		Short: "Make a report with charts of results in a directory",
		Long: `Reads pipeline.json, table.json, stall.json and forward.json in DIR, which are
what the commands of these names print with --json, and writes report.md and SVG
charts beside them. What is not there is left out.`,
		Example: "  weirperf report perf/results",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return write(args[0], how)
		},
	}
	cmd.Flags().StringVar(&how, "command", "make bench", "`command` that made the results, for the report")
	return cmd
}

// page is a report that is being written.
type page struct {
	strings.Builder
	dir string
}

func (p *page) line(format string, args ...any) { fmt.Fprintf(p, format+"\n", args...) }

// chart writes a chart beside the report and shows it there.
func (p *page) chart(name string, c report.Chart) error {
	p.line("![%s](%s)\n", c.Title, name)
	return os.WriteFile(filepath.Join(p.dir, name), c.SVG(), 0o644)
}

// sections are the parts of the report and what they are made of, what shows
// best first.
var sections = []struct {
	file  string
	write func(*page, []byte) error
}{
	{"forward.json", (*page).forward}, {"pipeline.json", (*page).pipeline},
	{"table.json", (*page).table}, {"stall.json", (*page).stall},
}

func write(dir, how string) error {
	p := &page{dir: dir}
	p.line("# Results\n")
	p.line("Machine: %s\n", machine.Describe())
	p.line("Command: `%s`\n", how)
	found := false
	for _, s := range sections {
		b, err := os.ReadFile(filepath.Join(dir, s.file))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil {
			err = s.write(p, b)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", s.file, err)
		}
		found = true
	}
	if !found {
		return fmt.Errorf("%s: there are no results", dir)
	}
	return os.WriteFile(filepath.Join(dir, "report.md"), []byte(p.String()), 0o644)
}

// forward shows ratios, then a chart per setting, then every figure.
func (p *page) forward(b []byte) error {
	var r struct {
		Command   string
		Endpoints int
		Seconds   float64
		Results   []report.Result
		Ratios    map[string]float64
	}
	if err := json.Unmarshal(b, &r); err != nil {
		return err
	}
	p.line("## On the wire\n\n`%s`, %d endpoints, %g s per measurement\n", r.Command, r.Endpoints, r.Seconds)
	p.line("CPU time of the one core that the packet path has, per packet that reached its end.\n")
	p.ratios(r.Ratios)
	for _, setting := range []string{"threaded", "default"} {
		c := report.Chart{Title: "UDP, 64 bytes: CPU time per packet (" + setting + " receivers)", Unit: "ns", Note: "less is better; lines: least to most of all turns"}
		for _, x := range r.Results {
			if x.Setting == setting && x.NsPerPacket > 0 && strings.HasPrefix(x.Workload, "udp-") {
				c.Bars = append(c.Bars, report.Bar{Group: group(x), Series: x.Peer, Value: x.NsPerPacket, Min: x.Min, Max: x.Max})
			}
		}
		if len(c.Bars) > 0 {
			if err := p.chart("forward-"+setting+".svg", c); err != nil {
				return err
			}
		}
	}
	p.line("| Setting | Workload | Path | ns per packet | Mpps | per second | Gbit/s | p50, p99 us | least..most | turns | lost | others' CPU |")
	p.line("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |")
	for _, x := range r.Results {
		p.line("| %s | %s | %s | %s | %s | %s | %s | %s | %s..%s | %d | %.1f %% | %.0f %% |", x.Setting, group(x), x.Peer,
			some(x.NsPerPacket), some(x.Mpps), some(x.PerSecond), some(x.Gbps), pair(x.P50us, x.P99us), some(x.Min), some(x.Max), x.Turns, x.LostPercent, x.OtherPercent)
	}
	p.line("")
	return nil
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
