package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/cmd/weir/config"
	"github.com/weirlb/weir/cmd/weir/view"
)

// addSocket adds --admin-socket.
func addSocket(cmd *cobra.Command, socket *string) {
	cmd.Flags().StringVar(socket, "admin-socket", config.Default().Admin.Socket, "`path` of the daemon's socket")
}

// asJSON checks the value of --output, which is table or json.
func asJSON(cmd *cobra.Command, output string) (bool, error) {
	if output != "table" && output != "json" {
		return false, badOutput(cmd, output, "table", "json")
	}
	return output == "json", nil
}

// maybeService accepts the name of a Service, or none.
func maybeService(cmd *cobra.Command, args []string) error {
	if len(args) == 1 && strings.Count(args[0], "/") != 1 {
		return fmt.Errorf("the name of a Service must be NAMESPACE/NAME, is %q", args[0])
	}
	return atMostOne("Service")(cmd, args)
}

// atMostOne accepts an argument with that name, or none.
func atMostOne(name string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) > 1 {
			return fmt.Errorf("unexpected argument %q after %s %s", args[1], name, args[0])
		}
		return nil
	}
}

func first(args []string) string {
	if len(args) == 0 {
		return ""
	}
	return args[0]
}

// completeServices completes names of Services, of the running daemon.
func completeServices(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	socket, _ := cmd.Flags().GetString("admin-socket")
	l, err := api.NewClient(socket).Services(cmd.Context(), "")
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	var out []string
	for _, s := range l.Services {
		out = append(out, s.Service)
	}
	return out, cobra.ShellCompDirectiveNoFileComp
}

func newServices() *cobra.Command {
	var (
		socket, output string
		rate           time.Duration
	)
	cmd := &cobra.Command{
		Use:   "services [NAMESPACE/NAME]",
		Short: "Show Services with tiers in use, connections, traffic and drops",
		Long: `Shows each Service of the running Weir: the tier in use per port and since when,
endpoints that get new flows of all, open connections, and since the start new
connections, handshakes that failed, SYNs, SYN-ACKs and FINs that came again, packets
and bytes, the mean time from SYN to SYN-ACK, and drops by reason. All begin with this process: a
restart sets counts to 0 and "since" to the start.

Packets and bytes are estimates from a sample, without those that the kernel
forwards by the flow table.`,
		Example: `  weir services
  weir services default/web -o json
  weir services --rate 5s              # per second, over five seconds`,
		Args: maybeService, ValidArgsFunction: completeServices,
		RunE: func(cmd *cobra.Command, args []string) error {
			json, err := asJSON(cmd, output)
			if err != nil {
				return err
			}
			if json && rate > 0 {
				return &usageError{cmd.CommandPath(), fmt.Errorf("--rate: only with -o table")}
			}
			c := api.NewClient(socket)
			var prev *api.ServiceList
			if rate > 0 {
				if prev, err = c.Services(cmd.Context(), first(args)); err != nil {
					return err
				}
				if err := wait(cmd.Context(), rate); err != nil {
					return err
				}
			}
			l, err := c.Services(cmd.Context(), first(args))
			switch {
			case err != nil:
				return err
			case json:
				return printJSON(cmd.OutOrStdout(), l)
			}
			return view.Services(cmd.OutOrStdout(), l, prev)
		},
	}
	addSocket(cmd, &socket)
	addOutput(cmd, &output, "table", "json")
	cmd.Flags().DurationVar(&rate, "rate", 0, "show counts per second over this `time`")
	return cmd
}

func wait(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

func newEndpoints() *cobra.Command {
	var socket, output string
	cmd := &cobra.Command{
		Use:   "endpoints [NAMESPACE/NAME]",
		Short: "Show endpoints with state, reason and connections",
		Long: `Shows every endpoint of the Services of the running Weir, used or not.

STATE is that of the EndpointSlice, health checks and drains together: ready; terminating,
which gets new flows while no endpoint is ready; terminated; or not-ready.
HEALTH is what this node has found out, and since when: passing or failing by the health
check of the Service, with the latency of the last probe; ejected, since connections
failed, or failing if it is used all the same, since too many are ejected; or unchecked.
USED says whether it gets new flows of clients from outside here, by the traffic policy
in POLICY, and REASON why.
CONNECTIONS are those of this node to it, OPEN those that are open.
ANSWERED, REFUSED (RST, or ICMP of the endpoint) and UNANSWERED (the client sent the SYN
again after a second, or no route or next hop led there) count attempts to connect.`,
		Example: `  weir endpoints
  weir endpoints default/web
  weir endpoints default/web -o json | jq '.endpoints[] | select(.used)'
  weir endpoints -o json | jq -r '.endpoints[] | select(.state != "ready") | .address + " " + .reason'
  weir endpoints -o json | jq '.endpoints[] | select(.health.state == "ejected")'`,
		Args: atMostOne("Service"), ValidArgsFunction: completeServices,
		RunE: func(cmd *cobra.Command, args []string) error {
			json, err := asJSON(cmd, output)
			if err != nil {
				return err
			}
			l, err := api.NewClient(socket).Endpoints(cmd.Context(), first(args))
			switch {
			case err != nil:
				return err
			case json:
				return printJSON(cmd.OutOrStdout(), l)
			}
			return view.Endpoints(cmd.OutOrStdout(), l)
		},
	}
	addSocket(cmd, &socket)
	addOutput(cmd, &output, "table", "json")
	return cmd
}
