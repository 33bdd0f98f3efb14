// Package fleet simulates many nodes that announce the same addresses behind
// routers with ECMP: which connections break when nodes and endpoints change. Tables and
// choices are those of lb/table. It is the command `weirperf fleet`.
package fleet

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/weirlb/weir/cmd/weirperf/machine"
)

// usageError means that the command was called wrongly.
type usageError struct{ error }

// ExitCode is 2.
func (usageError) ExitCode() int { return 2 }

// Options are the options of the command.
type Options struct {
	Nodes     []int
	Lost      []int
	Endpoints int
	Slots     []int
	Churn     []int
	ECMP      []string
	Buckets   int
	Lag       []time.Duration
	Lifetime  time.Duration
	Older     bool
	Flows     int
	Trials    int
	Seed      uint64
	Short     bool
	Results   string
}

const long = `Simulates nodes that announce the same addresses, behind routers that spread flows
over them by ECMP. Every node uses the Maglev table that weir run builds (lb/table).
Clients' connections have exponential lifetimes; endpoints are replaced at even
distances during a mean lifetime; then nodes are lost, or come back.

Shares are of connections whose endpoint lives. A connection that changes node

  nat        breaks: the other node has no flow, and answers go to the old node
  dsr        breaks if the other node chooses another endpoint
  stateless  as dsr without flow tables: any change of the choice breaks it

The first two parts compare with what is published: the disruption of Maglev tables with
the paper's sizes (Eisenbud et al., NSDI 2016, figure 12), and hash-threshold with the
formula of RFC 2992. The third has the price and the use of table sizes. The rest
is the sweep over nodes, lost nodes, ECMP, churn, lag of snapshots and table sizes. A
figure is the mean over trials that lose nodes at different positions, with the lowest
and the highest.

The same seed gives the same shares on every machine. Times to build tables are
measured.`

// Command is `weirperf fleet`.
func Command() *cobra.Command {
	var o Options
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "fleet",
		Short: "Simulate up to 10,000 nodes behind ECMP: which connections a change breaks",
		Long:  long,
		Example: `  weirperf fleet
  weirperf fleet --short
  weirperf fleet --nodes 10000 --flows 10000000 --churn 10 --trials 1 --json
  weirperf fleet --results perf/results`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.Short {
				o.shorten(cmd.Flags().Changed)
			}
			if err := o.check(); err != nil {
				return usageError{err}
			}
			r := runner{ctx: cmd.Context(), progress: cmd.ErrOrStderr(), o: o}
			rep, err := r.run()
			if err != nil {
				return err
			}
			rep.Machine = machine.Describe()
			if o.Results != "" {
				return save(rep, o.Results)
			}
			if asJSON {
				enc := json.NewEncoder(cmd.OutOrStdout())
				enc.SetIndent("", " ")
				return enc.Encode(rep)
			}
			return rep.render(cmd.OutOrStdout())
		},
	}
	fs := cmd.Flags()
	fs.SortFlags = false
	fs.IntSliceVar(&o.Nodes, "nodes", []int{2, 8, 64, 1000, 10000}, "`numbers` of nodes")
	fs.IntSliceVar(&o.Lost, "lost", []int{1}, "`numbers` of nodes that are lost at the same time; less than the nodes")
	fs.IntVar(&o.Endpoints, "endpoints", 1000, "`number` of endpoints")
	fs.IntSliceVar(&o.Slots, "slots", []int{0, 262139}, "`sizes` of the Maglev table; 0 is that of weir run")
	fs.IntSliceVar(&o.Churn, "churn", []int{0, 1, 10, 50}, "`numbers` of endpoints replaced in a mean lifetime")
	fs.StringSliceVar(&o.ECMP, "ecmp", []string{"modulo", "threshold", "resilient"}, "`kinds` of ECMP: modulo, threshold (RFC 2992), resilient")
	fs.IntVar(&o.Buckets, "buckets", 64, "`number` of buckets per node, with resilient ECMP")
	fs.DurationSliceVar(&o.Lag, "lag", []time.Duration{0, 5 * time.Second}, "`times` by which the slowest node's snapshot is behind")
	fs.DurationVar(&o.Lifetime, "lifetime", time.Minute, "mean `lifetime` of connections")
	fs.BoolVar(&o.Older, "older", false, "all connections are older than the first replacement, in place of lifetimes")
	fs.IntVar(&o.Flows, "flows", 1_000_000, "`number` of connections, of all trials together")
	fs.IntVar(&o.Trials, "trials", 5, "`number` of trials")
	fs.Uint64Var(&o.Seed, "seed", 1, "`seed` of connections and of the order of endpoints")
	fs.BoolVar(&o.Short, "short", false, "few settings and connections, in some seconds")
	fs.StringVar(&o.Results, "results", "", "`directory` for fleet.json, fleet.svg and fleet.md, in place of printing")
	fs.BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// shorten is --short: it leaves alone what the caller has set.
func (o *Options) shorten(set func(string) bool) {
	if !set("nodes") {
		o.Nodes = []int{8, 1000}
	}
	if !set("churn") {
		o.Churn = []int{0, 10}
	}
	if !set("slots") {
		o.Slots = []int{0}
	}
	if !set("flows") {
		o.Flows = 100_000
	}
}

func (o *Options) check() error {
	var errs []error
	between := func(flag string, v, lo, hi int) {
		if v < lo || v > hi {
			errs = append(errs, fmt.Errorf("--%s: must be between %d and %d, is %d", flag, lo, hi, v))
		}
	}
	for _, l := range []struct {
		flag   string
		values []int
		lo, hi int
	}{{"nodes", o.Nodes, 2, 10_000}, {"lost", o.Lost, 1, 9_999}, {"slots", o.Slots, 0, 1_048_573}, {"churn", o.Churn, 0, o.Endpoints}} {
		for _, v := range l.values {
			between(l.flag, v, l.lo, l.hi)
		}
		if len(l.values) == 0 {
			errs = append(errs, fmt.Errorf("--%s: must name at least one number", l.flag))
		}
	}
	for _, size := range o.Slots {
		switch {
		case size == 0: // the size that Weir chooses
		case size < o.Endpoints:
			errs = append(errs, fmt.Errorf("--slots: must not be less than --endpoints, is %d", size))
		case !big.NewInt(int64(size)).ProbablyPrime(0):
			errs = append(errs, fmt.Errorf("--slots: must be a prime number, is %d", size))
		}
	}
	between("endpoints", o.Endpoints, 2, 100_000)
	between("buckets", o.Buckets, 1, 1024)
	between("trials", o.Trials, 1, 1000)
	between("flows", o.Flows, max(o.Trials, 1), 100_000_000)
	for _, name := range o.ECMP {
		if _, err := parseKind(name); err != nil {
			errs = append(errs, fmt.Errorf("--ecmp: %w", err))
		}
	}
	if o.Lifetime <= 0 {
		errs = append(errs, fmt.Errorf("--lifetime: must be positive, is %v", o.Lifetime))
	}
	for _, lag := range o.Lag {
		if lag < 0 {
			errs = append(errs, fmt.Errorf("--lag: must not be negative, is %v", lag))
		}
	}
	if len(o.settings()) == 0 && len(errs) == 0 {
		errs = append(errs, errors.New("nothing to simulate: --lost must be less than --nodes"))
	}
	return errors.Join(errs...)
}

// settings are the points of the sweep; those that share tables are neighbors.
func (o *Options) settings() []setting {
	var out []setting
	for _, replaced := range o.Churn {
		for _, nodes := range o.Nodes {
			for _, lost := range o.Lost {
				for _, lag := range o.Lag {
					for _, event := range []string{loss, arrive} {
						for _, kind := range o.ECMP {
							if lost >= nodes {
								continue
							}
							out = append(out, setting{
								nodes: nodes, lost: lost, event: event, ecmp: ecmp(kind), replaced: replaced,
								lag: lag.Seconds() / o.Lifetime.Seconds(), perNode: o.Buckets,
							})
						}
					}
				}
			}
		}
	}
	return out
}

// save writes the results, the charts and the page into a directory.
func save(rep *Report, dir string) error {
	b, err := json.MarshalIndent(rep, "", " ")
	if err != nil {
		return err
	}
	files := map[string][]byte{"fleet.json": append(b, '\n'), "fleet.svg": rep.chart().SVG(), "fleet.md": []byte(rep.page())}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o644); err != nil {
			return err
		}
	}
	return nil
}
