package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/cmd/weir/translate"
	"github.com/weirlb/weir/cmd/weir/view"
)

func newDrain() *cobra.Command {
	var socket, output string
	cmd := &cobra.Command{
		Use:   "drain",
		Short: "Show, begin or end drains of endpoints and of this node",
		Long: `Shows the drains that were asked for by weir drain endpoint and weir drain self. They
outlive a restart and a crash, and end with a stop or a boot of the node.`,
		Example: `  weir drain
  weir drain endpoint 10.1.2.3:8080
  weir drain self --wait`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			json, err := asJSON(cmd, output)
			if err != nil {
				return err
			}
			return showDrains(cmd, json)(api.NewClient(socket).Drains(cmd.Context()))
		},
	}
	addSocket(cmd, &socket)
	addOutput(cmd, &output, "table", "json")
	cmd.AddCommand(newDrainEndpoint(), newDrainSelf())
	return cmd
}

// showDrains returns a function that writes an answer.
func showDrains(cmd *cobra.Command, asJSON bool) func(*api.Drains, error) error {
	return func(s *api.Drains, err error) error {
		switch {
		case err != nil:
			return err
		case asJSON:
			return printJSON(cmd.OutOrStdout(), s)
		}
		return view.Drains(cmd.OutOrStdout(), s)
	}
}

func newDrainEndpoint() *cobra.Command {
	var (
		socket, output string
		undo           bool
	)
	cmd := &cobra.Command{
		Use:   "endpoint ADDRESS[:PORT]...",
		Short: "Give endpoints no new connections on this node",
		Long: `Gives endpoints no new connections on this node, as if their Pods were terminating:
established connections go on, and new ones get other endpoints. While no other
endpoint of a Service port is ready, a drained one still serves. Without a port all
ports of the address are meant. The drain ends by --undo, when no Service lists the
endpoint any more, and when Weir is stopped: it outlives a restart. weir
endpoints shows it.`,
		Example: `  weir drain endpoint 10.1.2.3:8080
  weir drain endpoint 10.1.2.3 2001:db8::3
  weir drain endpoint 10.1.2.3:8080 --undo`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return errors.New("expected an endpoint: ADDRESS or ADDRESS:PORT")
			}
			for _, a := range args {
				if _, ok := translate.ParseDrained(a); !ok {
					return fmt.Errorf("endpoint must be ADDRESS or ADDRESS:PORT, is %q", a)
				}
			}
			return nil
		},
		ValidArgsFunction: completeEndpoints,
		RunE: func(cmd *cobra.Command, args []string) error {
			json, err := asJSON(cmd, output)
			if err != nil {
				return err
			}
			return showDrains(cmd, json)(api.NewClient(socket).DrainEndpoints(cmd.Context(), args, undo))
		},
	}
	addSocket(cmd, &socket)
	addOutput(cmd, &output, "table", "json")
	cmd.Flags().BoolVar(&undo, "undo", false, "end the drain")
	return cmd
}

// completeEndpoints completes addresses of endpoints, of the running daemon.
func completeEndpoints(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
	socket, _ := cmd.Flags().GetString("admin-socket")
	l, err := api.NewClient(socket).Endpoints(cmd.Context(), "")
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	return endpointsLike(l, args, typed), cobra.ShellCompDirectiveNoFileComp
}

// endpointsLike are the addresses of a list that begin as typed, each once, without those in args.
func endpointsLike(l *api.EndpointList, args []string, typed string) []string {
	var out []string
	for i := range l.Endpoints {
		if a := l.Endpoints[i].Address; strings.HasPrefix(a, typed) && !slices.Contains(args, a) {
			out = append(out, a)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func newDrainSelf() *cobra.Command {
	var (
		socket, output string
		undo, wait     bool
		timeout        time.Duration
	)
	cmd := &cobra.Command{
		Use:   "self",
		Short: "Let load balancers in front send to other nodes",
		Long: `Lets the health endpoints fail, as a drain on SIGTERM does at first, so that load
balancers in front send to other nodes. Weir serves on, new connections too, until
--undo, also after a restart; a stop or a boot of the node ends it too.
Addresses that are announced are withdrawn first, and --undo takes back those on a LAN
that are the node's by the hash, as soon as it serves. With --wait the
command ends when no connection is left and announce.drainSeconds are over, with exit
status 1 when some are left after --timeout.`,
		Example: `  weir drain self --wait --timeout 5m && reboot
  weir drain self --undo`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			json, err := asJSON(cmd, output)
			switch {
			case err != nil:
				return err
			case undo && wait:
				return &usageError{cmd.CommandPath(), errors.New("--undo and --wait exclude each other")}
			}
			c := api.NewClient(socket)
			s, err := c.DrainSelf(cmd.Context(), undo)
			if err == nil && wait {
				s, err = waitDrained(cmd.Context(), c, timeout)
			}
			return showDrains(cmd, json)(s, err)
		},
	}
	addSocket(cmd, &socket)
	addOutput(cmd, &output, "table", "json")
	cmd.Flags().BoolVar(&undo, "undo", false, "let the health endpoints succeed again")
	cmd.Flags().BoolVar(&wait, "wait", false, "wait until no connection is left")
	cmd.Flags().DurationVar(&timeout, "timeout", 10*time.Minute, "`time` to wait at most")
	return cmd
}

// countEvery is the time between two counts of all connections.
const countEvery = time.Second

// waitDrained waits until no connection is left.
func waitDrained(ctx context.Context, c *api.Client, timeout time.Duration) (*api.Drains, error) {
	end := time.Now().Add(timeout)
	for {
		s, err := c.Drains(ctx)
		switch {
		case err != nil:
			return nil, err
		case !s.Self: // first of all: clients are sent here again
			return nil, errors.New("the drain of the node was ended")
		case s.Connections == 0 && s.LingerSeconds == 0:
			return s, nil
		case s.Connections == 0 && !time.Now().Before(end):
			return nil, fmt.Errorf("packets may still come for %.0f s after %v", s.LingerSeconds, timeout)
		case !time.Now().Before(end):
			return nil, fmt.Errorf("%d connections are left after %v", s.Connections, timeout)
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(min(countEvery, time.Until(end))):
		}
	}
}
