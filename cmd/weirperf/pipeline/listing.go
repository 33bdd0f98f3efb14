package pipeline

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/weirlb/weir/cmd/weirperf/machine"
)

// ListingOptions are the options of `weirperf connections`.
type ListingOptions struct {
	Flows   int
	Seconds float64 // of each part
	Turns   int
	// RealTime gives the worker a real-time priority, if the process may.
	RealTime bool
	// Bar is the largest loss of rate, and the largest growth of p99, in percent; 0: none.
	Bar float64
}

// ListingReport is the result of `weirperf connections`; as JSON it has a fixed form.
type ListingReport struct {
	Machine machine.Machine `json:"machine"`
	Flows   int             `json:"flows"`
	CPU     int             `json:"cpu"` // of the worker; -1: not pinned
	// PacedPerSecond is the rate at which packets arrive where the latency is measured.
	PacedPerSecond float64 `json:"pacedPerSecond"`
	// RealTime is whether the worker had a real-time priority.
	RealTime bool          `json:"realTime"`
	Turns    []ListingTurn `json:"turns"`
	// RateRatio is the rate with listings over that without, P99Ratio the same of the 99th
	// percentile of the latency, per turn.
	RateRatio Spread `json:"rateRatio"`
	P99Ratio  Spread `json:"p99Ratio"`
	// BaseMB is the most memory that the process had before the first listing, PeakMB the most
	// that it had until the end (VmHWM).
	BaseMB float64 `json:"baseMB"`
	PeakMB float64 `json:"peakMB"`
	// LiveMB is the most memory that a garbage collection has left of the Go heap, BaseLiveMB
	// the same before the first listing.
	BaseLiveMB float64 `json:"baseLiveMB"`
	LiveMB     float64 `json:"liveMB"`
	Asked      asked   `json:"asked"`
}

// ListingTurn has the parts of a turn.
type ListingTurn struct {
	Without ListingPart `json:"without"`
	With    ListingPart `json:"with"`
}

// ListingPart is a part of a turn.
type ListingPart struct {
	PacketsPerSecond float64 `json:"packetsPerSecond"`
	P50us            float64 `json:"p50us"`
	// P99us is the median of the 99th percentiles of all slices: where the machine stands still
	// for a moment, as virtual machines do, a slice of many is spoilt. AllP99us and AllP999us
	// are of all packets.
	P99us     float64 `json:"p99us"`
	AllP99us  float64 `json:"allP99us"`
	AllP999us float64 `json:"allP999us"`
}

// Spread is the median of several figures, with the lowest and the highest.
type Spread struct {
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
}

func spreadOf(figures []float64) Spread {
	s := slices.Sorted(slices.Values(figures))
	return Spread{s[len(s)/2], s[0], s[len(s)-1]}
}

// ListingCommand is `weirperf connections`.
func ListingCommand() *cobra.Command {
	var (
		o      ListingOptions
		asJSON bool
		client string
	)
	cmd := &cobra.Command{
		Use:   "connections",
		Short: "Measure what listing connections costs the packet loop",
		Long: `Fills the flow table with TCP connections and runs a worker over queues in memory, on
a CPU of its own, while another process lists, counts and filters the connections
without pause over the admin socket, as weir connections does. Every 50 ms the process is
paused or goes on, so that other load of the machine concerns both alike:

  rate      packets of random connections, as many as the worker takes, per second
  latency   packets arrive evenly at half of that rate: from a packet's arrival to
            the end of the round that sent it; p99 is the median of those of
            all slices of 50 ms, and "all" is of all packets

Every answer is checked to have all connections. Memory is the most that the process
of worker and API had (VmHWM), garbage included, of which there is up to four times
the Go heap in use.

With --realtime no program takes the CPU of the worker, neither those that happen to
run on the machine nor the process that asks. The rest is the cost of the answers:
caches, memory, locks, and the Go runtime. "nice -n -20" before the command also
gives the answers precedence before other programs.`,
		Example: `  weirperf connections
  weirperf connections --bar 10
  weirperf connections --flows 4000000 --turns 9 --json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.check(); err != nil {
				return usageError{err}
			}
			if client != "" {
				return askUntilClosed(cmd.Context(), client, o.Flows, cmd.InOrStdin(), cmd.OutOrStdout())
			}
			r, err := measureListing(cmd.Context(), cmd.ErrOrStderr(), o)
			if err != nil {
				return err
			}
			if asJSON {
				err = printJSON(cmd.OutOrStdout(), r)
			} else {
				err = r.render(cmd.OutOrStdout())
			}
			return errors.Join(err, r.judge(o.Bar))
		},
	}
	fs := cmd.Flags()
	fs.SortFlags = false
	fs.IntVar(&o.Flows, "flows", 1_000_000, "`number` of connections")
	fs.Float64Var(&o.Seconds, "seconds", 2, "`seconds` of each measurement in a turn")
	fs.IntVar(&o.Turns, "turns", 5, "`number` of turns")
	fs.BoolVar(&o.RealTime, "realtime", false, "give the worker a real-time priority")
	fs.Float64Var(&o.Bar, "bar", 0, "`percent` of rate and p99 that listings may cost; more is an error; 0: no bar")
	fs.BoolVar(&asJSON, "json", false, "print JSON")
	fs.StringVar(&client, "client", "", "be the other process, which asks at this socket")
	_ = fs.MarkHidden("client")
	return cmd
}

func (o *ListingOptions) check() error {
	var errs []error
	if o.Flows < leastNew || o.Flows > mostFlows {
		errs = append(errs, fmt.Errorf("--flows: must be between %d and %d, is %d", leastNew, mostFlows, o.Flows))
	}
	if o.Seconds <= 0 {
		errs = append(errs, fmt.Errorf("--seconds: must be more than 0, is %v", o.Seconds))
	}
	if o.Turns < 1 {
		errs = append(errs, fmt.Errorf("--turns: must be at least 1, is %d", o.Turns))
	}
	if o.Bar < 0 {
		errs = append(errs, fmt.Errorf("--bar: must not be negative, is %v", o.Bar))
	}
	return errors.Join(errs...)
}

// judge is an error where listings cost more than the bar allows.
func (r *ListingReport) judge(bar float64) error {
	var errs []error
	if bar == 0 {
		return nil
	}
	if r.RateRatio.Median < 1-bar/100 {
		errs = append(errs, fmt.Errorf("with listings the rate is %.3f of that without: more than %.0f %% are lost", r.RateRatio.Median, bar))
	}
	if r.P99Ratio.Median > 1+bar/100 {
		errs = append(errs, fmt.Errorf("with listings p99 is %.3f of that without: more than %.0f %% above", r.P99Ratio.Median, bar))
	}
	return errors.Join(errs...)
}

// summarize computes the ratios of the turns.
func (r *ListingReport) summarize() {
	var rate, p99 []float64
	for _, t := range r.Turns {
		rate = append(rate, t.With.PacketsPerSecond/t.Without.PacketsPerSecond)
		p99 = append(p99, t.With.P99us/t.Without.P99us)
	}
	r.RateRatio, r.P99Ratio = spreadOf(rate), spreadOf(p99)
}

// render writes the report for people.
func (r *ListingReport) render(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n%d TCP connections; ", r.Machine, r.Flows)
	if r.CPU >= 0 {
		fmt.Fprintf(&b, "the worker on CPU %d", r.CPU)
		if r.RealTime {
			fmt.Fprint(&b, " with real-time priority")
		}
	} else {
		fmt.Fprint(&b, "the worker not pinned: there is one CPU")
	}
	fmt.Fprintf(&b, "; latency at %.2f million packets per second\n\n", r.PacedPerSecond/1e6)
	fmt.Fprintf(&b, "%4s  %-8s %14s %9s %9s %12s %12s\n", "turn", "listings", "packets/s", "p50 us", "p99 us", "all: p99 us", "p99.9 us")
	for i, t := range r.Turns {
		for _, x := range []struct {
			name string
			p    *ListingPart
		}{{"without", &t.Without}, {"with", &t.With}} {
			fmt.Fprintf(&b, "%4d  %-8s %14.0f %9.1f %9.1f %12.1f %12.1f\n", i+1, x.name, x.p.PacketsPerSecond, x.p.P50us, x.p.P99us, x.p.AllP99us, x.p.AllP999us)
		}
	}
	fmt.Fprintf(&b, "\nwith / without, median of the turns (least .. most):\nrate  %s\np99   %s\n", r.RateRatio, r.P99Ratio)
	fmt.Fprintf(&b, "memory: %.0f MB at most, %.0f MB before the first listing; of the Go heap in use %.1f MB at most, %.1f MB before\n",
		r.PeakMB, r.BaseMB, r.LiveMB, r.BaseLiveMB)
	fmt.Fprintf(&b, "meanwhile: %d connections listed, %d lists of all, %d counts, %d filtered lists, each complete\n",
		r.Asked.Connections, r.Asked.Lists, r.Asked.Counts, r.Asked.Filtered)
	_, err := io.WriteString(w, b.String())
	return err
}

// String formats the spread for people.
func (s Spread) String() string { return fmt.Sprintf("%.3f (%.3f .. %.3f)", s.Median, s.Min, s.Max) }

// measureListing fills a table and measures all turns.
func measureListing(ctx context.Context, progress io.Writer, o ListingOptions) (*ListingReport, error) {
	l, err := newListing(ctx, progress, o)
	if err != nil {
		return nil, err
	}
	defer l.close()
	return l.run(ctx)
}
