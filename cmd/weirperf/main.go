// Weirperf shows Weir at work (weirperf demo), and measures it: the packet path in memory
// and on the wire beside other load balancers, the control plane, and the cost of the
// control plane to the packet path.
package main

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

	"github.com/weirlb/weir/cmd/weirperf/controlplane"
	"github.com/weirlb/weir/cmd/weirperf/demo"
	"github.com/weirlb/weir/cmd/weirperf/endpoints"
	"github.com/weirlb/weir/cmd/weirperf/fleet"
	"github.com/weirlb/weir/cmd/weirperf/forward"
	"github.com/weirlb/weir/cmd/weirperf/pipeline"
	"github.com/weirlb/weir/cmd/weirperf/programming"
	"github.com/weirlb/weir/cmd/weirperf/results"
	"github.com/weirlb/weir/cmd/weirperf/vm"
	"github.com/weirlb/weir/perf/testbed"
)

// commands are the demonstration and the measurements, each in a separate package.
var commands = []func() *cobra.Command{
	demo.Command,
	controlplane.Command,
	controlplane.StallCommand,
	pipeline.Command,
	pipeline.ListingCommand,
	fleet.Command,
	forward.Command,
	programming.Command,
	endpoints.Command,
	results.Command,
	vm.Command,
}

// benches are the commands with a testbed, which leads a session.
var benches = []string{"forward", "endpoints"}

func main() {
	if len(os.Args) > 1 && slices.Contains(benches, os.Args[1]) {
		testbed.LeadSession()
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// run is the whole program. The status is 0, or that which the error asks for
// by a method ExitCode, else 1; wrong usage is 2.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	root := newRoot()
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	for line := range strings.SplitSeq(err.Error(), "\n") {
		fmt.Fprintf(stderr, "weirperf: %s\n", line)
	}
	var coder interface{ ExitCode() int }
	if errors.As(err, &coder) {
		return coder.ExitCode()
	}
	return 1
}

// usageError means that weirperf was called wrongly.
type usageError struct{ error }

// ExitCode is 2.
func (usageError) ExitCode() int { return 2 }

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "weirperf",
		Short: "Show Weir at work, and measure it beside what it is compared with",
		Long: `Weirperf shows Weir at work (weirperf demo), and measures it: every other command prints
the machine, the setting, and figures with their spread; ratios are of what ran in the
same run. With --json the same comes as one JSON object.`,
		SilenceErrors:     true,
		SilenceUsage:      true,
		DisableAutoGenTag: true,
		Args:              cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usageError{fmt.Errorf("unknown command %q", args[0])}
			}
			_ = cmd.Help()
			return usageError{errors.New("no command was given")}
		},
	}
	for _, command := range commands {
		root.AddCommand(command())
	}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	return root
}
