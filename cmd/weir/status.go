package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/cmd/weir/config"
	"github.com/weirlb/weir/cmd/weir/view"
)

func newStatus() *cobra.Command {
	var (
		socket, output             string
		watch, frontends, problems bool
		drops, verify, announced   bool
		interval                   time.Duration
		flows                      int
		filter                     api.FlowFilter
	)
	cmd := &cobra.Command{
		Use:   "status [flags]",
		Short: "Show the state of the running Weir",
		Long: `Shows the Weir of this node, through its admin socket: interfaces with the mode
granted by the kernel, packets per worker, drops by reason, flows, next hops, and
problems, which are all things that it does not do as asked, with object, reason
and time.

weir connections and weir drops have more than --flows and --drops: they page, count,
filter and follow.`,
		Example: `  weir status
  weir status --watch                  # again every 2 s, with packets per second
  weir status -o json | jq .drops
  weir status --frontends              # each frontend with its endpoints
  weir status --flows 20               # the first 20 flows
  weir status --flows 20 --client 192.0.2.7 --state established
  weir status --drops                  # the last dropped packets, by reason
  weir status --announce               # what routers are told, and why not
  weir status --problems               # all problems and notes
  weir status --verify                 # the invariants of the flow table`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if output != "table" && output != "json" {
				return badOutput(cmd, output, "table", "json")
			}
			if watch && interval < 100*time.Millisecond {
				return &usageError{cmd.CommandPath(), fmt.Errorf("--interval: must be at least 100ms, is %v", interval)}
			}
			c, asJSON := api.NewClient(socket), output == "json"
			show := func(ctx context.Context) error { return showStatus(ctx, cmd.OutOrStdout(), c, asJSON) }
			if filter != (api.FlowFilter{}) && flows == 0 {
				flows = api.DefaultFlowLimit
			}
			switch {
			case flows > 0:
				show = func(ctx context.Context) error { return showFlows(ctx, cmd.OutOrStdout(), c, flows, &filter, asJSON) }
			case announced:
				show = func(ctx context.Context) error { return showAnnounce(ctx, cmd.OutOrStdout(), c, asJSON) }
			case drops:
				show = func(ctx context.Context) error { return showDrops(ctx, cmd.OutOrStdout(), c, nil, asJSON) }
			case verify:
				show = func(ctx context.Context) error { return showVerification(ctx, cmd.OutOrStdout(), c, asJSON) }
			case problems:
				show = func(ctx context.Context) error { return showProblems(ctx, cmd.OutOrStdout(), c, asJSON) }
			case frontends:
				show = func(ctx context.Context) error { return showFrontends(ctx, cmd.OutOrStdout(), c, asJSON) }
			case watch:
				return watchStatus(cmd.Context(), cmd.OutOrStdout(), c, asJSON, interval)
			}
			return show(cmd.Context())
		},
	}
	fs := cmd.Flags()
	fs.StringVar(&socket, "admin-socket", config.Default().Admin.Socket, "`path` of the daemon's socket")
	addOutput(cmd, &output, "table", "json")
	fs.BoolVarP(&watch, "watch", "w", false, "repeat until interrupted")
	fs.DurationVar(&interval, "interval", 2*time.Second, "`time` between two repetitions with --watch")
	fs.IntVar(&flows, "flows", 0, "show this `number` of flows instead; see weir connections")
	fs.BoolVar(&frontends, "frontends", false, "show the frontends instead")
	fs.BoolVar(&problems, "problems", false, "show all problems instead")
	fs.BoolVar(&drops, "drops", false, "show the last dropped packets, by reason, instead; see weir drops")
	fs.BoolVar(&announced, "announce", false, "show the addresses that routers are told of, and the sessions with them, instead")
	fs.BoolVar(&verify, "verify", false, "check the invariants of the flow table instead; exit status 1 if one is violated")
	fs.StringVar(&filter.Client, "client", "", "show flows of this client: `address`, address:port or CIDR")
	fs.StringVar(&filter.Frontend, "frontend", "", "show flows to this frontend: `address`, address:port or CIDR")
	fs.StringVar(&filter.Endpoint, "endpoint", "", "show flows to this endpoint: `address`, address:port or CIDR")
	fs.StringVar(&filter.Service, "service", "", "show flows of this Service, `namespace/name`")
	fs.StringVar(&filter.State, "state", "", "show flows in this `state`, such as established")
	cmd.MarkFlagsMutuallyExclusive("watch", "flows", "frontends", "problems", "drops", "announce", "verify")
	return cmd
}

func showStatus(ctx context.Context, w io.Writer, c *api.Client, asJSON bool) error {
	s, err := c.Status(ctx)
	if err != nil {
		return err
	}
	if asJSON {
		return printJSON(w, s)
	}
	return view.Status(w, s, nil)
}

func showVerification(ctx context.Context, w io.Writer, c *api.Client, asJSON bool) error {
	v, err := c.Verify(ctx)
	if err != nil {
		return err
	}
	if asJSON {
		if err := printJSON(w, v); err != nil {
			return err
		}
	} else if err := view.Verification(w, v); err != nil {
		return err
	}
	if len(v.Faults) > 0 {
		return silent(1)
	}
	return nil
}

func showAnnounce(ctx context.Context, w io.Writer, c *api.Client, asJSON bool) error {
	s, err := c.Status(ctx)
	if err != nil {
		return err
	}
	if asJSON {
		return printJSON(w, s.Announce)
	}
	return view.Announce(w, s)
}

func showProblems(ctx context.Context, w io.Writer, c *api.Client, asJSON bool) error {
	s, err := c.Status(ctx)
	if err != nil {
		return err
	}
	if asJSON {
		return printJSON(w, s.Problems)
	}
	return view.Problems(w, s)
}

func showFlows(ctx context.Context, w io.Writer, c *api.Client, limit int, filter *api.FlowFilter, asJSON bool) error {
	l, err := c.Flows(ctx, limit, filter)
	if err != nil {
		return err
	}
	if asJSON {
		return printJSON(w, l)
	}
	return view.Flows(w, l)
}

func showFrontends(ctx context.Context, w io.Writer, c *api.Client, asJSON bool) error {
	l, err := c.Frontends(ctx)
	if err != nil {
		return err
	}
	if asJSON {
		return printJSON(w, l)
	}
	return view.Frontends(w, l)
}

// watchStatus shows the status until ctx ends. A daemon that goes away is
// said, and waited for.
func watchStatus(ctx context.Context, w io.Writer, c *api.Client, asJSON bool, every time.Duration) error {
	home := ""
	if isTerminal(w) && !asJSON {
		home = "\x1b[H\x1b[2J" // cursor home, clear
	}
	var prev *api.Status
	t := time.NewTicker(every)
	defer t.Stop()
	for first := true; ; first = false {
		s, err := c.Status(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && first:
			return err
		case err != nil:
			fmt.Fprintf(w, "%s%s  %v\n", home, time.Now().Format(time.TimeOnly), err)
			prev = nil
		case asJSON:
			if err := json.NewEncoder(w).Encode(s); err != nil {
				return err
			}
		default:
			if prev != nil && prev.PID != s.PID {
				prev = nil
			}
			fmt.Fprint(w, home)
			if err := view.Status(w, s, prev); err != nil {
				return err
			}
			if home == "" {
				fmt.Fprintln(w)
			}
			prev = s
		}
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
	}
}

func printJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}
