// Package fleet is `weirperf demo fleet`: several Weirs behind a router that spreads connections
// over them, in network namespaces. Nodes are drained, killed and stopped, and return, while
// clients hold connections and open others. A table says what was lost.
package fleet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/perf/netlab"
	"github.com/weirlb/weir/perf/netlab/router"
)

// options are the flags.
type options struct {
	connections int
	rounds      int
	events      []string
	hold        int
	bfd         int
	keep        bool
}

// Command is `weirperf demo fleet`.
func Command() *cobra.Command {
	o := options{}
	cmd := &cobra.Command{
		Use:   "fleet",
		Short: "Show several Weirs behind a router, of which some leave and return",
		Long: `Show several Weirs behind a router, of which some leave and return, in network
namespaces.

Four nodes announce the addresses of two Services to FRR, which spreads connections
over them by the five-tuple. A node is drained, another is killed (kill -9), a third
is stopped, and each returns. Meanwhile clients use established connections, and open
others. The table at the end has for each step how long the router took to follow,
and the connections that were lost: in forwarding mode ipip, where all nodes choose
the same endpoint, and in mode nat, where a node alone knows the translation.

The demo takes about a minute, needs root and FRR (Debian's package frr), leaves the
machine's network alone and cleans up. With --rounds it repeats the steps, and prints
the medians of the times.

The exit status is 0 if no connection was lost in mode ipip, else 1.`,
		Args:         cobra.NoArgs,
		SilenceUsage: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			context.AfterFunc(ctx, stop) // a second Ctrl-C ends the process at once
			return run(ctx, cmd.OutOrStdout(), &o)
		},
	}
	fs := cmd.Flags()
	fs.IntVar(&o.connections, "connections", 120, "established connections of each mode")
	fs.IntVar(&o.rounds, "rounds", 1, "how often the steps are repeated")
	fs.StringSliceVar(&o.events, "events", shown, "what happens to nodes: "+strings.Join(eventNames(), ", "))
	fs.IntVar(&o.hold, "hold", 9, "hold time of the sessions in seconds")
	fs.IntVar(&o.bfd, "bfd", 0, "time between packets of BFD in milliseconds, of which three may be lost; 0: no BFD")
	fs.BoolVar(&o.keep, "keep", false, "leave everything running at the end and print commands to inspect it")
	fs.SortFlags = false
	return cmd
}

func (o *options) check() error {
	if o.connections < 1 || o.rounds < 1 {
		return errors.New("--connections and --rounds must be positive")
	}
	if o.hold < 3 {
		return errors.New("--hold must be 3 or more (RFC 4271)")
	}
	if o.bfd != 0 && (o.bfd < 50 || o.bfd > 60_000) {
		return errors.New("--bfd must be 0 or 50 to 60000")
	}
	for _, e := range o.events {
		if !slices.Contains(eventNames(), e) {
			return fmt.Errorf("--events: must be of %s, is %q", strings.Join(eventNames(), ", "), e)
		}
	}
	return errors.Join(netlab.Available(), router.FRRAvailable())
}

// run is the whole demo. It returns an error when a promise was broken.
func run(ctx context.Context, out io.Writer, o *options) (err error) {
	if err := o.check(); err != nil {
		return fmt.Errorf("demo fleet: %w", err)
	}
	if err := raiseFiles(2*o.connections*len(modes) + 1024); err != nil {
		return fmt.Errorf("demo fleet: %w", err)
	}
	r := newReport(out)
	b, err := newBed(ctx, r, o)
	if err != nil {
		return interrupted(ctx, err)
	}
	defer func() { err = errors.Join(err, b.close()) }()
	err = interrupted(ctx, b.play(ctx, r, o))
	if o.keep && ctx.Err() == nil {
		r.keep(b)
		<-ctx.Done()
		r.line("\nremoving everything")
	}
	return err
}

// raiseFiles raises the limit of open files: both ends of all connections are in this process.
func raiseFiles(to int) error {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &l); err != nil || l.Cur >= uint64(to) {
		return err
	}
	raised := unix.Rlimit{Cur: uint64(to), Max: max(l.Max, uint64(to))}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &raised); err != nil {
		return fmt.Errorf("--connections: %d open files, of which the limit is %d: %w", to, l.Cur, err)
	}
	return nil
}

// interrupted puts a Ctrl-C in the place of the errors that followed from it.
func interrupted(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil {
		return errors.New("interrupted")
	}
	return err
}

// play goes through the steps of all rounds, and judges them.
func (b *bed) play(ctx context.Context, r *report, o *options) error {
	traffic := b.drive(ctx, o.connections)
	defer traffic.stop()
	r.header(o.connections)
	var all []result
	for range o.rounds {
		for _, s := range steps(o.events) {
			res, err := b.take(ctx, traffic, s)
			if err != nil {
				return fmt.Errorf("%s: %w\n%s", s.title(), err, b.logs())
			}
			r.step(&res)
			all = append(all, res)
		}
	}
	if err := traffic.stop(); err != nil {
		return err
	}
	if o.rounds > 1 {
		r.medians(all)
	}
	var faults []string
	for i := range all {
		faults = append(faults, all[i].faults()...)
	}
	r.verdict(faults)
	if len(faults) > 0 {
		return errors.New("the demo failed: connections were lost that must not be")
	}
	return nil
}
