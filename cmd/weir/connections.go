package main

import (
	"bufio"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/cmd/weir/view"
)

// addFilter adds the flags of a filter of connections.
func addFilter(cmd *cobra.Command, f *api.FlowFilter) {
	fs := cmd.Flags()
	fs.StringVar(&f.Client, "client", "", "of this client: `address`, address:port or CIDR")
	fs.StringVar(&f.Frontend, "frontend", "", "to this frontend: `address`, address:port or CIDR")
	fs.StringVar(&f.Endpoint, "endpoint", "", "to this endpoint: `address`, address:port or CIDR")
	fs.StringVar(&f.Service, "service", "", "of this Service, `namespace/name`")
	fs.StringVar(&f.State, "state", "", "in this `state`, such as established, or a part of the name")
	fs.StringVar(&f.Protocol, "protocol", "", "of this `protocol`: TCP, UDP or SCTP")
	fs.DurationVar(&f.MinAge, "min-age", 0, "made at least this `time` ago")
	fs.DurationVar(&f.MaxAge, "max-age", 0, "made at most this `time` ago")
	fs.DurationVar(&f.MinIdle, "min-idle", 0, "without a packet for at least this `time`")
	_ = cmd.RegisterFlagCompletionFunc("service", func(cmd *cobra.Command, _ []string, s string) ([]string, cobra.ShellCompDirective) {
		return completeServices(cmd, nil, s)
	})
	_ = cmd.RegisterFlagCompletionFunc("protocol", cobra.FixedCompletions([]string{"TCP", "UDP", "SCTP"}, cobra.ShellCompDirectiveNoFileComp))
}

func newConnections() *cobra.Command {
	var (
		socket, output, by string
		filter             api.FlowFilter
		limit              int
		after              uint32
		all                bool
	)
	cmd := &cobra.Command{
		Use:   "connections [flags]",
		Short: "Show, count or kill connections",
		Long: `Shows the connections of the running Weir that match every given flag. The daemon
filters and counts them part by part, at half speed: a walk over millions disturbs
neither workers nor other requests. Three walks run at a time; a member of admin.group
has one. Others wait for 5 seconds at most.

With --count-by it counts them by client, client-prefix (/24, /64), frontend,
endpoint, service, state, protocol or mode. More than 65,536 groups are not kept
apart: then counts may be too low by a number that is shown. At most 1000 groups are
listed.`,
		Example: `  weir connections --client 192.0.2.0/24 --state established
  weir connections --service default/web --min-idle 1h --all -o json
  weir connections --limit 100 --after 4711      # the next page
  weir connections --count-by client-prefix --limit 10
  weir connections kill --endpoint 10.1.2.3`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			json, err := asJSON(cmd, output)
			if err != nil {
				return err
			}
			c := api.NewClient(socket)
			if cmd.Flags().Changed("count-by") {
				if !slices.Contains(api.CountKeys, by) {
					return &usageError{cmd.CommandPath(), fmt.Errorf("--count-by: must be %s, is %q", strings.Join(api.CountKeys, ", "), by)}
				}
				n, err := c.CountConnections(cmd.Context(), &filter, by, limit)
				switch {
				case err != nil:
					return err
				case json:
					return printJSON(cmd.OutOrStdout(), n)
				}
				return view.ConnectionCount(cmd.OutOrStdout(), n)
			}
			switch {
			case all:
				limit = 0
			case limit < 1:
				return &usageError{cmd.CommandPath(), fmt.Errorf("--limit: must be positive, is %d; --all shows all", limit)}
			}
			return listConnections(cmd, c, &filter, limit, after, json)
		},
	}
	addSocket(cmd, &socket)
	addOutput(cmd, &output, "table", "json")
	addFilter(cmd, &filter)
	fs := cmd.Flags()
	fs.StringVar(&by, "count-by", "", "count by `key`: "+strings.Join(api.CountKeys, ", "))
	fs.IntVar(&limit, "limit", 100, "show this `number` of connections or groups")
	fs.Uint32Var(&after, "after", 0, "show those after this `number`, which the page before ends with")
	fs.BoolVar(&all, "all", false, "show all that match")
	_ = cmd.RegisterFlagCompletionFunc("count-by", cobra.FixedCompletions(api.CountKeys, cobra.ShellCompDirectiveNoFileComp))
	cmd.MarkFlagsMutuallyExclusive("limit", "all")
	cmd.MarkFlagsMutuallyExclusive("count-by", "after")
	cmd.MarkFlagsMutuallyExclusive("count-by", "all")
	cmd.AddCommand(newKill())
	return cmd
}

// connectionPage is how many connections this program asks for at a time. It has each page
// whole before it writes: a pager that nobody scrolls holds nothing up in the daemon.
const connectionPage = api.DefaultFlowLimit

// listConnections writes connections page by page: at most limit, 0 for all.
func listConnections(cmd *cobra.Command, c *api.Client, filter *api.FlowFilter, limit int, after uint32, json bool) error {
	w := bufio.NewWriter(cmd.OutOrStdout())
	table, object := view.NewConnections(w), (*api.ObjectWriter)(nil)
	if json {
		object = api.NewObjectWriter(w, true)
		object.List("connections")
	}
	last := &api.ConnectionList{Next: after}
	for n := 0; ; {
		most, page := connectionPage, []api.Flow{}
		if limit > 0 {
			most = min(most, limit-n)
		}
		l, err := c.Connections(cmd.Context(), filter, most, last.Next, func(f *api.Flow) error {
			page = append(page, *f)
			return nil
		})
		if err != nil {
			return errors.Join(err, w.Flush())
		}
		last, n = l, n+len(page)
		if err := writePage(table, object, page); err != nil {
			return err
		}
		if l.Next == 0 || n == limit {
			break
		}
	}
	switch {
	case json:
		object.End()
		object.Field("total", last.Total)
		if last.Next != 0 {
			object.Field("next", last.Next)
		}
		object.Close() // the error stays with w
	case last.Next != 0:
		fmt.Fprintf(w, "... of %d connections: there may be more with --after %d\n", last.Total, last.Next)
	}
	return w.Flush()
}

// writePage writes connections to the object, or without an object to the table.
func writePage(table *view.Connections, object *api.ObjectWriter, page []api.Flow) error {
	if object == nil {
		return table.Page(page)
	}
	for i := range page {
		if err := object.Element(&page[i]); err != nil {
			return err
		}
	}
	return nil
}

func newKill() *cobra.Command {
	var (
		socket, output string
		filter         api.FlowFilter
	)
	cmd := &cobra.Command{
		Use:   "kill [flags]",
		Short: "Remove connections that match from the flow table",
		Long: `Removes the connections that match every given flag from the flow table; at least
one flag is required. Open TCP connections and SCTP associations get a RST or
ABORT on both sides with the next packet of either, for 10 seconds. After that, and
for half-open ones, the next packet is handled as one without a connection: TCP
gets a RST from Weir, or from the kernel during conntrack.takeoverSeconds, at
announced addresses after announce.resetAfterSeconds. UDP selects an endpoint anew.

It does not ask for confirmation: see with the same flags of weir connections
--count-by service how many would go. A Service that does not exist is an error.`,
		Example: `  weir connections kill --client 192.0.2.7
  weir connections kill --service default/web --min-idle 2h`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			json, err := asJSON(cmd, output)
			if err != nil {
				return err
			}
			if filter == (api.FlowFilter{}) {
				return &usageError{cmd.CommandPath(), errors.New("a filter is required: without one every connection would be removed")}
			}
			k, err := api.NewClient(socket).KillConnections(cmd.Context(), &filter)
			switch {
			case err != nil:
				return err
			case json:
				return printJSON(cmd.OutOrStdout(), k)
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "removed: %d\n", k.Killed)
			return err
		},
	}
	addSocket(cmd, &socket)
	addOutput(cmd, &output, "table", "json")
	addFilter(cmd, &filter)
	return cmd
}
