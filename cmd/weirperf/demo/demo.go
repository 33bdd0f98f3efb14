// Package demo is `weirperf demo`: Weir at the main job on this machine, within a
// minute and without touching the machine's own network. It builds a client,
// an edge node and three backends out of network namespaces, runs `weir run`
// on the edge node and drives real connections through it while the
// endpoints come and go. Below it, fleet is `weirperf demo fleet`: several Weirs behind a router;
// lan is `weirperf demo lan`: several on a link without a router.
package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/weirlb/weir/cmd/weirperf/demo/fleet"
	"github.com/weirlb/weir/cmd/weirperf/demo/lan"
	"github.com/weirlb/weir/perf/netlab"
)

// options are the flags.
type options struct {
	keep    bool
	verbose bool
	seconds time.Duration // of each phase
}

// Command is `weirperf demo`.
func Command() *cobra.Command {
	o := options{}
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Show Weir at work on real traffic, in network namespaces of its own",
		Long: `Show Weir at work on real traffic, in network namespaces of its own.

A client sends HTTP and UDP to a node port and a load balancer IP, over IPv4 and
IPv6, while endpoints change: all are ready, those of the zone disappear, only
terminating endpoints are left, none is left, all return. At last an endpoint
receives packets through a tunnel and answers the client directly (direct server
return). The demo takes less than a minute, needs root, leaves the machine's
network alone and cleans up.

The exit status is 0 if everything worked, else 1.`,
		Args:         cobra.NoArgs,
		SilenceUsage: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			// A second Ctrl-C ends the process at once: the kernel then
			// removes the namespaces and kills the child.
			context.AfterFunc(ctx, stop)
			return run(ctx, cmd.OutOrStdout(), cmd.ErrOrStderr(), o)
		},
	}
	cmd.Flags().BoolVar(&o.keep, "keep", false, "leave everything running at the end and print commands to inspect it")
	cmd.Flags().BoolVar(&o.verbose, "verbose", false, "show the log of weir run")
	cmd.Flags().DurationVar(&o.seconds, "phase", 5*time.Second, "duration of each phase")
	cmd.AddCommand(fleet.Command(), lan.Command())
	return cmd
}

// run is the whole demo. It returns an error when anything went otherwise
// than it must.
func run(ctx context.Context, out, errOut io.Writer, o options) (err error) {
	if err := netlab.Available(); err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	r := newReport(out)
	s, err := newSite(ctx, r, errOut, o)
	if err != nil {
		return interrupted(ctx, err)
	}
	defer func() { err = errors.Join(err, s.close()) }()

	err = interrupted(ctx, s.play(ctx, r, o))
	if o.keep && ctx.Err() == nil {
		r.keep(s)
		<-ctx.Done()
		r.line("\nremoving everything")
	}
	return err
}

// interrupted puts a Ctrl-C in the place of the errors that followed from it.
func interrupted(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil {
		return errors.New("interrupted")
	}
	return err
}

// play goes through the phases and judges them.
func (s *site) play(ctx context.Context, r *report, o options) error {
	before, err := s.count(ctx)
	if err != nil {
		return err
	}
	traffic := s.drive(ctx, 5*o.seconds)
	defer traffic.stop()

	var faults []string
	for _, p := range phases {
		result, err := s.enter(ctx, traffic, p)
		if err != nil {
			return fmt.Errorf("phase (%c): %w", p.letter, err)
		}
		if err := wait(ctx, o.seconds); err != nil {
			return err
		}
		result.finish(traffic)
		r.phase(p, result)
		faults = append(faults, result.faults(p)...)
	}
	r.line("")
	faults = append(faults, traffic.finishDownloads(r)...)
	if err := traffic.stop(); err != nil {
		return err
	}
	counted, err := s.settle(ctx, before)
	if err != nil {
		return err
	}
	faults = append(faults, counted.faults()...)
	past, err := s.playDirect(ctx, r)
	if err != nil {
		return fmt.Errorf("phase (f): %w", err)
	}
	faults = append(faults, past...)
	r.verdict(counted, faults)
	if len(faults) > 0 {
		return fmt.Errorf("the demo failed in %d ways; %s", len(faults), s.logHint())
	}
	return nil
}

// wait waits for d, or returns ctx's error.
func wait(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
