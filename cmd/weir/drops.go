package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/cmd/weir/config"
	"github.com/weirlb/weir/cmd/weir/view"
	"github.com/weirlb/weir/lb/worker"
)

func newDrops() *cobra.Command {
	var (
		socket, output, prefix string
		match                  api.DropFilter
		follow                 bool
	)
	cmd := &cobra.Command{
		Use:   "drops [flags]",
		Short: "Show the packets that were dropped lately",
		Long: `Shows the last packets that Weir has dropped or refused: of each reason and worker 64,
with time, interface, length, addresses and Service. They are kept at all times. Of a
flood a few per second and reason are kept; weir status counts all.`,
		Example: `  weir drops
  weir drops --reason no-endpoint --service default/web
  weir drops --prefix 192.0.2.0/24 -o json | jq '.packets[].reason'
  weir drops --follow`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if output != "table" && output != "json" {
				return badOutput(cmd, output, "table", "json")
			}
			if prefix != "" {
				p, err := parsePrefix(prefix)
				if err != nil {
					return &usageError{cmd.CommandPath(), fmt.Errorf("--prefix: %w", err)}
				}
				match.Prefix = p
			}
			c := api.NewClient(socket)
			if follow {
				return followDrops(cmd.Context(), cmd.OutOrStdout(), c, &match, output == "json")
			}
			return showDrops(cmd.Context(), cmd.OutOrStdout(), c, &match, output == "json")
		},
	}
	fs := cmd.Flags()
	fs.StringVar(&socket, "admin-socket", config.Default().Admin.Socket, "`path` of the daemon's socket")
	addOutput(cmd, &output, "table", "json")
	fs.StringVar(&match.Reason, "reason", "", "show packets dropped for this `reason`")
	fs.StringVar(&match.Service, "service", "", "show packets from and to frontends of this Service, `namespace/name`")
	_ = cmd.RegisterFlagCompletionFunc("service", func(cmd *cobra.Command, _ []string, s string) ([]string, cobra.ShellCompDirective) {
		return completeServices(cmd, nil, s)
	})
	fs.StringVar(&prefix, "prefix", "", "show packets from and to this `address` or CIDR")
	fs.BoolVarP(&follow, "follow", "f", false, "show packets as they are dropped, until interrupted")
	_ = cmd.RegisterFlagCompletionFunc("reason", cobra.FixedCompletions(worker.DropReasons(), cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// parsePrefix parses an address or a CIDR.
func parsePrefix(s string) (netip.Prefix, error) {
	if a, err := netip.ParseAddr(s); err == nil {
		return netip.PrefixFrom(a, a.BitLen()), nil
	}
	p, err := netip.ParsePrefix(s)
	if err != nil {
		return p, fmt.Errorf("must be an address or a CIDR, is %q", s)
	}
	return p.Masked(), nil
}

func showDrops(ctx context.Context, w io.Writer, c *api.Client, match *api.DropFilter, asJSON bool) error {
	l, err := c.Drops(ctx, match)
	if err != nil {
		return err
	}
	if asJSON {
		return printJSON(w, l)
	}
	return view.Drops(w, l)
}

// followEvery is the time between two looks at dropped packets: shorter than that in which
// a worker replaces the samples of a reason.
const followEvery = 500 * time.Millisecond

// followDrops shows packets as they are dropped, a line for each, until ctx ends.
func followDrops(ctx context.Context, w io.Writer, c *api.Client, match *api.DropFilter, asJSON bool) error {
	type series struct {
		worker int
		reason string
	}
	var seen map[series]uint64 // the number of the next packet; nil before the first look
	t := time.NewTicker(followEvery)
	defer t.Stop()
	for {
		l, err := c.Drops(ctx, match)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		slices.SortStableFunc(l.Packets, func(a, b api.DroppedPacket) int { return a.Time.Compare(b.Time) })
		next := map[series]uint64{}
		for _, p := range l.Packets {
			s := series{p.Worker, p.Reason}
			next[s] = max(next[s], p.Number+1)
		}
		for s, n := range next {
			if n < seen[s] { // another process counts from 0
				seen[s] = 0
			}
		}
		for _, p := range l.Packets {
			s := series{p.Worker, p.Reason}
			if seen != nil && p.Number >= seen[s] {
				if err := printDrop(w, &p, asJSON); err != nil {
					return err
				}
			}
		}
		for s, n := range seen {
			if _, ok := next[s]; !ok {
				next[s] = n
			}
		}
		seen = next
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
	}
}

func printDrop(w io.Writer, p *api.DroppedPacket, asJSON bool) error {
	if asJSON {
		return json.NewEncoder(w).Encode(p)
	}
	return view.Drop(w, p)
}
