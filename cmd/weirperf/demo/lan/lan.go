// Package lan is `weirperf demo lan`: several Weirs on a link without a router, which share the
// addresses of two Services by ARP and neighbor discovery, in network namespaces. Nodes are drained,
// killed and stopped while clients send probes and use connections. A table says what was lost.
package lan

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

	"github.com/weirlb/weir/perf/netlab"
)

// Command is `weirperf demo lan`.
func Command() *cobra.Command {
	keep := false
	cmd := &cobra.Command{
		Use:   "lan",
		Short: "Show several Weirs on a LAN without a router, which share its addresses",
		Long: `Show several Weirs on a LAN without a router, which share its addresses, in network
namespaces.

Three nodes on a bridge answer ARP and neighbor discovery for the addresses of two
Services; each address has an owner at a time. A node is drained, another is killed
(kill -9), a third is stopped. Meanwhile a client sends a datagram every 10 ms and
opens a connection every 20 ms to addresses of that node, over IPv4 and IPv6, each
from a new socket, and uses established connections. The table has for each step
how long the other nodes took to own the addresses, the longest time between two
requests that were answered, and all that was lost: in forwarding mode l2dsr, where
all nodes choose the same endpoint, and in mode nat, where a node alone knows the
translation.

The demo takes less than half a minute, needs root, leaves the machine's network
alone and cleans up.

The exit status is 0 if planned moves lost no probe and no new connection, a death
was survived within a second, and mode l2dsr lost no established connection, else 1.`,
		Args:         cobra.NoArgs,
		SilenceUsage: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			context.AfterFunc(ctx, stop) // a second Ctrl-C ends the process at once
			return run(ctx, cmd.OutOrStdout(), keep)
		},
	}
	cmd.Flags().BoolVar(&keep, "keep", false, "leave everything running at the end and print commands to inspect it")
	return cmd
}

// run is the whole demo. It returns an error when a promise was broken.
func run(ctx context.Context, out io.Writer, keep bool) error {
	if err := netlab.Available(); err != nil {
		return fmt.Errorf("demo lan: %w", err)
	}
	r := newReport(out)
	r.topology()
	for try := 1; ; try++ {
		stalled, err := attempt(ctx, r, keep)
		if err == nil || !stalled || try == attempts || ctx.Err() != nil {
			return interrupted(ctx, err)
		}
		r.line("\n%v\nThe machine kept a node from running for longer than a death takes to be seen. Again:\n", err)
	}
}

// attempts are tries of the demo on a machine that keeps nodes from running: others take the addresses
// of such a node as they would after its death, and no promise is of that.
const attempts = 3

// attempt plays the demo in a lab of its own. stalled tells that a node did not run for a while.
func attempt(ctx context.Context, r *report, keep bool) (stalled bool, err error) {
	b, err := newBed(ctx, r)
	if b == nil {
		return false, err
	}
	defer func() { err = errors.Join(err, b.close()) }()
	if err == nil {
		err = b.play(ctx, r)
	}
	stalled = b.stalled()
	if keep && ctx.Err() == nil && (err == nil || !stalled) {
		r.keep(b)
		<-ctx.Done()
		r.line("\nremoving everything")
	}
	return stalled, err
}

// interrupted puts a Ctrl-C in the place of the errors that followed from it.
func interrupted(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil {
		return errors.New("interrupted")
	}
	return err
}

// play goes through the steps, and judges them.
func (b *bed) play(ctx context.Context, r *report) error {
	t := &traffic{bed: b}
	defer t.close()
	r.header()
	var faults []string
	for i := range steps {
		res, err := b.take(ctx, t, &steps[i])
		if err != nil {
			return fmt.Errorf("%s: %w\n%s", steps[i].title(), err, b.logs())
		}
		r.step(res)
		faults = append(faults, res.faults()...)
	}
	r.verdict(faults)
	if len(faults) > 0 {
		return errors.New("the demo failed: more was lost than may be")
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
