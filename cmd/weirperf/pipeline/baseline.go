package pipeline

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/weirlb/weir/perf/report"
)

// Ratio compares a figure of this binary with the baseline's. The ratio is taken
// per turn, in which both binaries run one after the other, so that a machine that
// gets slower from turn to turn does not change it.
type Ratio struct {
	Mode    string `json:"mode"`
	Flows   int    `json:"flows"`
	Kind    string `json:"kind"`
	Workers int    `json:"workers"`
	// Medians over the turns, in nanoseconds of CPU per packet and worker.
	NsPerPacket         float64 `json:"nsPerPacket"`
	BaselineNsPerPacket float64 `json:"baselineNsPerPacket"`
	// Ratio is the median over the turns of this binary's figure over the
	// baseline's: below 1 this binary is faster. Min and Max are its spread.
	Ratio float64 `json:"ratio"`
	Min   float64 `json:"ratioMin"`
	Max   float64 `json:"ratioMax"`
	Turns int     `json:"turns"`
}

// comparison runs two binaries in turn.
type comparison struct {
	self, baseline string // paths of the binaries
	o              Options
	progress       io.Writer
}

// run measures both binaries o.Turns times. The binary that goes first alternates,
// so that neither always finds the other's caches and clock frequency.
func (c *comparison) run(ctx context.Context) ([]Ratio, error) {
	sides := []struct {
		binary  string
		reports []*Report
	}{{binary: c.baseline}, {binary: c.self}}
	for turn := range c.o.Turns {
		for i := range sides {
			side := &sides[(i+turn)%len(sides)]
			fmt.Fprintf(c.progress, "turn %d of %d: %s\n", turn+1, c.o.Turns, side.binary)
			r, err := c.measure(ctx, side.binary)
			if err != nil {
				return nil, err
			}
			side.reports = append(side.reports, r)
		}
	}
	return compare(sides[1].reports, sides[0].reports)
}

// measure runs a binary once, as a separate process.
func (c *comparison) measure(ctx context.Context, binary string) (*Report, error) {
	cmd := exec.CommandContext(ctx, binary, c.o.arguments()...)
	var out, complaints bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &complaints
	// An interrupt ends the measurement and not half of it.
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, fmt.Errorf("%s: %w: %s", binary, err, lastLine(complaints.String()))
	}
	var r Report
	if err := json.Unmarshal(out.Bytes(), &r); err != nil {
		return nil, fmt.Errorf("%s: its output is not a report: %w", binary, err)
	}
	return &r, nil
}

func lastLine(s string) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return lines[len(lines)-1]
}

// arguments are those of a run that is measured: only those that every release of this
// command has, if the options need no other.
func (o *Options) arguments() []string {
	flows := make([]string, len(o.Flows))
	for i, n := range o.Flows {
		flows[i] = strconv.Itoa(n)
	}
	arguments := []string{"pipeline", "--json", "--flows", strings.Join(flows, ","), "--mode", o.Mode, "--proto", o.Proto,
		"--workers", strconv.Itoa(o.Workers), "--samples", strconv.Itoa(o.Samples)}
	if o.IPv6 {
		arguments = append(arguments, "--ipv6")
	}
	return arguments
}

// figure names a result that two reports share.
type figure struct {
	mode, kind     string
	flows, workers int
}

// compare pairs the reports of both binaries turn by turn. Figures that no report of the
// baseline has are left out: an older binary measures fewer. If only some turns have a
// figure, or if there is none in common, the binaries do not measure the same.
func compare(own, base []*Report) ([]Ratio, error) {
	var ratios []Ratio
	for _, x := range own[0].Results {
		f := figure{x.Mode, x.Kind, x.Flows, x.Workers}
		if !slices.ContainsFunc(base, func(r *Report) bool { _, err := r.figure(f); return err == nil }) {
			continue
		}
		var mine, theirs, quotients []float64
		for turn := range own {
			a, err := own[turn].figure(f)
			if err != nil {
				return nil, err
			}
			b, err := base[turn].figure(f)
			if err != nil {
				return nil, fmt.Errorf("the baseline: %w", err)
			}
			mine, theirs, quotients = append(mine, a), append(theirs, b), append(quotients, a/b)
		}
		ratios = append(ratios, Ratio{
			Mode: f.mode, Flows: f.flows, Kind: f.kind, Workers: f.workers,
			NsPerPacket: report.Median(mine), BaselineNsPerPacket: report.Median(theirs),
			Ratio: report.Median(quotients), Min: slices.Min(quotients), Max: slices.Max(quotients), Turns: len(quotients),
		})
	}
	if len(ratios) == 0 {
		return nil, errors.New("the baseline has none of the figures")
	}
	return ratios, nil
}

// figure returns a result in nanoseconds per packet.
func (r *Report) figure(f figure) (float64, error) {
	for _, x := range r.Results {
		if (figure{x.Mode, x.Kind, x.Flows, x.Workers}) == f && x.NsPerPacket > 0 {
			return x.NsPerPacket, nil
		}
	}
	return 0, fmt.Errorf("no figure for %s, mode %s, %d flows, %d workers", f.kind, f.mode, f.flows, f.workers)
}

// renderRatios writes the comparison for people.
func renderRatios(w io.Writer, ratios []Ratio) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%10s  %-11s %7s  %10s  %10s  %6s  %14s\n", "flows", "kind", "workers", "ns/packet", "baseline", "ratio", "min .. max")
	for _, x := range ratios {
		fmt.Fprintf(&b, "%10d  %-11s %7d  %10.1f  %10.1f  %6.3f  %14s\n", x.Flows, x.Kind, x.Workers, x.NsPerPacket, x.BaselineNsPerPacket,
			x.Ratio, fmt.Sprintf("%.3f .. %.3f", x.Min, x.Max))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// self is the path of the running binary.
func self() (string, error) {
	path, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("--baseline: cannot find this binary to run it again: %w", err)
	}
	return path, nil
}
