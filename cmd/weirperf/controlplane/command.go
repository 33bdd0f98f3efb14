// Package controlplane measures Weir's control plane: how long it takes, and
// how much memory, from EndpointSlices to the published snapshot, in a made-up
// cluster of skewed sizes. It is the command `weirperf table`.
package controlplane

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/weirlb/weir/cmd/weirperf/machine"
)

// usageError means that the command was called wrongly.
type usageError struct{ error }

// ExitCode is 2.
func (usageError) ExitCode() int { return 2 }

// report is the JSON form.
type report struct {
	Machine machine.Machine `json:"machine"`
	*Result
}

// Command is `weirperf table`.
func Command() *cobra.Command {
	var o Options
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "table",
		Short: "Measure the control plane: from a slice to the published snapshot",
		Long: `Builds a cluster's whole state from EndpointSlices of 100, then measures
one-slice changes, from the slice event to the published snapshot that workers
read, with every Maglev table rebuilt that a change calls for. Sizes are skewed:
one Service with 5,000 endpoints, ten with 1,000, a hundred with 25, the rest
small.

The Go runtime is set as in weir run (GOGC 400), GOGC and GOMAXPROCS win. The
allocation of a change leaves out the decoding of the event. The heap per
endpoint is all that stays alive after the build: discovery, the tables, Maglev
tables included.

The last table is the byte economy of slices against one Endpoints object, for
5,000 endpoints and 3,000 watching nodes, from objects encoded as an API server
encodes them, with slices packed by the slice controller's algorithm.`,
		Example: `  weirperf table
  weirperf table --services 1000 --endpoints 25000 --json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.check(); err != nil {
				return usageError{err}
			}
			r := runner{ctx: cmd.Context(), w: cmd.ErrOrStderr()}
			res, err := r.run(o)
			if err != nil {
				return err
			}
			m := machine.Describe()
			if asJSON {
				enc := json.NewEncoder(cmd.OutOrStdout())
				enc.SetIndent("", "  ")
				return enc.Encode(report{m, res})
			}
			return res.render(cmd.OutOrStdout(), m)
		},
	}
	fs := cmd.Flags()
	fs.SortFlags = false
	fs.IntVar(&o.Services, "services", 10000, "`number` of Services")
	fs.IntVar(&o.Endpoints, "endpoints", 250000, "`number` of endpoints, of all Services together")
	fs.IntVar(&o.Changes, "changes", 2000, "`number` of one-slice changes over all slices")
	fs.BoolVar(&o.Economy, "economy", true, "compute the byte economy of slices")
	fs.BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func (o *Options) check() error {
	const most = 1 << 20 // endpoint numbers that a table has by default
	var errs []error
	if o.Services < 1 {
		errs = append(errs, fmt.Errorf("--services: must be at least 1, is %d", o.Services))
	}
	if o.Endpoints < o.Services || o.Endpoints > most {
		errs = append(errs, fmt.Errorf("--endpoints: must be between --services and %d, is %d", most, o.Endpoints))
	}
	if o.Changes < 1 {
		errs = append(errs, fmt.Errorf("--changes: must be at least 1, is %d", o.Changes))
	}
	return errors.Join(errs...)
}

// render writes the result for people.
func (r *Result) render(w io.Writer, m machine.Machine) error {
	b := &buffer{}
	b.line("%s", m)
	b.line("%d Services, %d endpoints", r.Services, r.Endpoints)
	b.line("")
	b.line("build, slices to snapshot   %8.2f s", r.BuildSeconds)
	b.line("heap per endpoint           %8.0f bytes", r.HeapBytesPerEndpoint)
	b.line("one-slice change            %s", &r.Change)
	for _, s := range r.BySize {
		b.line("  of %5d endpoints         %s", s.Endpoints, &s.Quantiles)
		b.line("                            %s in %d objects allocated", bytesOf(float64(s.AllocBytes)), s.AllocObjects)
	}
	if t := r.Tenth; t != nil {
		b.line("  of %5d, against %d Services: %.2f times the time, %.2f times the bytes", middleSize, t.Services, t.RatioP50, t.RatioAlloc)
	}
	if o := r.Rollout; o != nil {
		b.line("rollout of %5d endpoints   %8.2f s in %d events: %s", o.Endpoints, o.Seconds, o.Events, &o.Quantiles)
	}
	if e := r.Economy; e != nil {
		b.line("")
		b.line("%d endpoints watched by %d nodes, one Endpoints object against slices of %d:", e.Endpoints, e.Nodes, e.PerSlice)
		for _, k := range e.Encodings {
			b.line("  %-9s object %s / %s, one change %s / %s, full rollout %s / %s (%.0f times less)", k.Encoding,
				bytesOf(float64(k.EndpointsObject)), bytesOf(float64(k.SliceObject)),
				bytesOf(k.EndpointsChange), bytesOf(k.SlicesChange),
				bytesOf(k.EndpointsRollout), bytesOf(k.SlicesRollout), k.EndpointsRollout/k.SlicesRollout)
		}
		p := &e.Proposal
		b.line("  KEP-752 reckoned with Endpoints of %s: %s for one change, %s for a rollout",
			bytesOf(float64(p.EndpointsObject)), bytesOf(p.EndpointsChange), bytesOf(p.EndpointsRollout))
	}
	_, err := io.WriteString(w, b.text)
	return err
}

func (q *Quantiles) String() string {
	return fmt.Sprintf("%8.0f us p50, %.0f p99, %.0f min, %.0f max; CPU %.0f p50, %.0f p99",
		q.P50us, q.P99us, q.MinUs, q.Maxus, q.CPUP50us, q.CPUP99us)
}

type buffer struct{ text string }

func (b *buffer) line(format string, args ...any) { b.text += fmt.Sprintf(format, args...) + "\n" }

func bytesOf(n float64) string {
	for _, u := range []struct {
		size float64
		name string
	}{{1e12, "TB"}, {1e9, "GB"}, {1e6, "MB"}, {1e3, "kB"}} {
		if n >= u.size {
			return fmt.Sprintf("%.3g %s", n/u.size, u.name)
		}
	}
	return fmt.Sprintf("%.0f bytes", n)
}
