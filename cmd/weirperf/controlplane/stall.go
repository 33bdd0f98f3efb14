package controlplane

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"runtime"
	"time"

	"github.com/spf13/cobra"

	"github.com/weirlb/weir/cmd/weir/tuning"
	"github.com/weirlb/weir/cmd/weirperf/machine"
)

// StallOptions are the disturbances of the worker, and their duration.
type StallOptions struct {
	Seconds             float64
	Services, Endpoints int // of the churn
	Events              int // of a storm of watch events; 0: none
	Probed              int // endpoints with a health check; 0: none
}

// Stall is the share of time that a worker loses.
type Stall struct {
	// LostPercent of the time is in stalls: rounds of the worker's loop that
	// took more than 10 us, less the duration of a round.
	LostPercent float64 `json:"lostPercent"`
	// P99us and Maxus are of the stalls, P50us too.
	P50us float64 `json:"p50us"`
	P99us float64 `json:"p99us"`
	Maxus float64 `json:"maxus"`
	// PerSecond is the number of stalls.
	PerSecond float64 `json:"perSecond"`
	Over1ms   int     `json:"over1ms"`
	RoundNs   float64 `json:"roundNs"` // of a round without a stall
	Seconds   float64 `json:"seconds"`
	// WaitedPercent of the time the thread was ready to run and another had the CPU
	// (schedstat), Weir's own or another's.
	WaitedPercent float64 `json:"waitedPercent"`
	// OwnPercent is LostPercent without WaitedPercent: the loss that other processes on the
	// machine do not account for, if nothing of Weir's may run on the worker's CPU.
	OwnPercent float64 `json:"ownPercent"`
	// BeyondCalmPercent is OwnPercent less that of calm: the cost of the control plane.
	// Interrupts cost a worker something in any case.
	BeyondCalmPercent float64 `json:"beyondCalmPercent"`
	// Voluntary switches are the Go runtime's, involuntary ones the kernel's.
	Voluntary   int64 `json:"voluntarySwitches"`
	Involuntary int64 `json:"involuntarySwitches"`
}

// StallResult is the output of `weirperf stall --json`.
type StallResult struct {
	Workers int    `json:"workers"`
	CPU     int    `json:"cpu"` // the worker's; -1: not pinned
	Calm    *Stall `json:"calm"`
	// Probes is while endpoints are probed.
	Probes *Stall `json:"probes,omitempty"`
	// Churn is while slices change without pause.
	Churn        *Stall  `json:"churn"`
	ChurnChanges float64 `json:"churnChangesPerSecond"`
	// Storm is while watch events are played to the informers.
	Storm       *Stall      `json:"storm,omitempty"`
	StormEvents *StormStats `json:"stormEvents,omitempty"`
}

// StallCommand is `weirperf stall`.
func StallCommand() *cobra.Command {
	var (
		o      StallOptions
		asJSON bool
		serve  bool
	)
	cmd := &cobra.Command{
		Use:   "stall",
		Short: "Measure what the control plane costs a worker: calm against churn",
		Long: `Runs a worker's loop on a thread and a CPU of its own, in one process with the
control plane and with the daemon's runtime settings, and counts the rounds that
took more than 10 us:

  calm    nothing happens
  probes  endpoints on this machine are probed by a connection every two seconds
  churn   slices of a large cluster change without pause, each change published
  storm   recorded watch events of EndpointSlices are played to the informers by
          another process over HTTP, as fast as they take them

A round takes the published snapshot, and looks up and picks for 64 packets.
What other processes on the machine cost is in all: compare with calm.`,
		Example: `  weirperf stall
  weirperf stall --seconds 20 --events 10000 --json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if serve {
				return serveStorm(cmd.Context(), o.Events, cmd.InOrStdin(), cmd.OutOrStdout())
			}
			if err := o.check(); err != nil {
				return usageError{err}
			}
			r := runner{ctx: cmd.Context(), w: cmd.ErrOrStderr()}
			res, err := r.stall(o)
			if err != nil {
				return err
			}
			m := machine.Describe()
			if asJSON {
				enc := json.NewEncoder(cmd.OutOrStdout())
				enc.SetIndent("", "  ")
				return enc.Encode(struct {
					Machine machine.Machine `json:"machine"`
					*StallResult
				}{m, res})
			}
			return res.render(cmd.OutOrStdout(), m)
		},
	}
	fs := cmd.Flags()
	fs.SortFlags = false
	fs.Float64Var(&o.Seconds, "seconds", 10, "`seconds` of each part")
	fs.IntVar(&o.Services, "services", 10000, "`number` of Services of the churn")
	fs.IntVar(&o.Endpoints, "endpoints", 250000, "`number` of endpoints of the churn")
	fs.IntVar(&o.Events, "events", 10000, "`number` of watch events of a storm; 0: no storm")
	fs.IntVar(&o.Probed, "probed", 1000, "`number` of endpoints that are probed; 0: none")
	fs.BoolVar(&asJSON, "json", false, "print JSON")
	fs.BoolVar(&serve, "serve-storm", false, "be the other process")
	_ = fs.MarkHidden("serve-storm")
	return cmd
}

func (o *StallOptions) check() error {
	var errs []error
	if o.Seconds <= 0 {
		errs = append(errs, fmt.Errorf("--seconds: must be more than 0, is %v", o.Seconds))
	}
	if o.Events < 0 {
		errs = append(errs, fmt.Errorf("--events: must not be negative, is %d", o.Events))
	}
	if o.Probed < 0 || o.Probed > mostProbed {
		errs = append(errs, fmt.Errorf("--probed: must be from 0 to %d, is %d", mostProbed, o.Probed))
	}
	t := Options{Services: o.Services, Endpoints: o.Endpoints, Changes: 1}
	return errors.Join(append(errs, t.check())...)
}

// stall measures all parts.
func (r *runner) stall(o StallOptions) (*StallResult, error) {
	out := &StallResult{Workers: 1, CPU: tuning.LastCPU()}
	var cpus []int
	if out.CPU >= 0 {
		cpus = []int{out.CPU}
	}
	defer tuning.Apply(r.warn, out.Workers, cpus).All()
	for _, part := range []struct {
		what string
		on   bool
		run  func() error
	}{
		{fmt.Sprintf("building %d Services with %d endpoints; calm, then churn, %.0f s each", o.Services, o.Endpoints, o.Seconds), true,
			func() error { return r.calmAndChurn(o, out) }},
		{fmt.Sprintf("storms of %d watch events, %.0f s", o.Events, o.Seconds), o.Events > 0,
			func() error { return r.storm(o, out) }},
	} {
		if !part.on {
			continue
		}
		r.say("%s", part.what)
		if err := part.run(); err != nil {
			return nil, err
		}
		runtime.GC()
	}
	for _, s := range []*Stall{out.Probes, out.Churn, out.Storm} {
		if s != nil {
			s.BeyondCalmPercent = max(0, s.OwnPercent-out.Calm.OwnPercent)
		}
	}
	return out, nil
}

func (r *runner) warn(err error) { r.say("%v", err) }

func (r *runner) calmAndChurn(o StallOptions, out *StallResult) error {
	c := newCluster(o.Services, o.Endpoints)
	p := newPlane()
	if _, err := p.build(c); err != nil {
		return fmt.Errorf("build: %w", err)
	}
	runtime.GC()
	span := time.Duration(o.Seconds * float64(time.Second))

	m := startMeter(p.table, frontendKeys(c), out.CPU)
	if err := pause(r.ctx, span); err != nil {
		return err
	}
	out.Calm = m.stop()
	if o.Probed > 0 {
		stop, err := probeMany(r.ctx, o.Probed)
		if err != nil {
			return err
		}
		m = startMeter(p.table, frontendKeys(c), out.CPU)
		err = pause(r.ctx, span)
		out.Probes = m.stop()
		if stop(); err != nil {
			return err
		}
	}

	ctx, cancel := context.WithTimeout(r.ctx, span)
	defer cancel()
	m = startMeter(p.table, frontendKeys(c), out.CPU)
	start, n, pick := time.Now(), 0, c.anySlice()
	for ctx.Err() == nil {
		p.store.SetSlice(p.next(c, pick(n)))
		if err := p.publish(); err != nil {
			return fmt.Errorf("change: %w", err)
		}
		n++
	}
	out.ChurnChanges = float64(n) / time.Since(start).Seconds()
	out.Churn = m.stop()
	runtime.KeepAlive(p)
	return r.ctx.Err()
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// render writes the result for people.
func (r *StallResult) render(w io.Writer, m machine.Machine) error {
	b := &buffer{}
	b.line("%s", m)
	if r.CPU >= 0 {
		b.line("1 worker on CPU %d, everything else beside it", r.CPU)
	} else {
		b.line("1 worker, not pinned: there is one CPU")
	}
	b.line("")
	b.line("%-6s %8s %9s %9s %9s %8s %7s %9s %9s %9s", "", "lost", "p50", "p99", "max", "per s", "> 1 ms", "waited", "own", "- calm")
	for _, p := range []struct {
		name string
		*Stall
	}{{"calm", r.Calm}, {"probes", r.Probes}, {"churn", r.Churn}, {"storm", r.Storm}} {
		if s := p.Stall; s != nil {
			b.line("%-6s %6.2f %% %6.0f us %6.0f us %6.0f us %8.0f %7d %7.2f %% %7.2f %% %7.2f %%", p.name,
				s.LostPercent, s.P50us, s.P99us, s.Maxus, s.PerSecond, s.Over1ms, s.WaitedPercent, s.OwnPercent, s.BeyondCalmPercent)
		}
	}
	b.line("")
	b.line("lost: in rounds of more than 10 us; waited: another process, or thread, had the CPU; own: the rest of what was lost, less that of calm")
	b.line("churn: %.0f changes per second", r.ChurnChanges)
	if e := r.StormEvents; e != nil {
		b.line("storm: %d of %d events, %.0f per second, %.1f MB per second, %d updates", e.Storms, e.Events, e.PerSecond, e.MBPerSecond, e.Updates)
	}
	_, err := io.WriteString(w, b.text)
	return err
}
