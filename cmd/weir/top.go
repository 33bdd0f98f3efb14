package main

import (
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/cmd/weir/top"
)

func newTop() *cobra.Command {
	var (
		socket, output string
		once           bool
		o              top.Options
	)
	cmd := &cobra.Command{
		Use:   "top [flags]",
		Short: "Watch Services, endpoints, workers, clients and drops in a terminal",
		Long: `Shows a table of the running Weir that is always current, sorted by any column:
Services, endpoints, workers, client prefixes, or drops by reason with their Service.
The key ? shows the keys. A restart of Weir is waited for.

Without a terminal, and with --once or -o json, it looks twice, an interval apart,
writes the table and ends. Columns for --sort have the names of the fields of -o json.

It asks for no more than it shows, and not before the last answer has come. Client
prefixes are counted over all connections, at most a twentieth of the time.`,
		Example: `  weir top
  weir top --tab drops --interval 5s
  weir top --tab services --sort failedPerSecond --once --limit 10
  weir top --tab clients -o json | jq '.rows[0]'`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			json, err := asJSON(cmd, output)
			if err != nil {
				return err
			}
			if err := o.Check(); err != nil {
				return &usageError{cmd.CommandPath(), err}
			}
			if o.Limit < 0 {
				return &usageError{cmd.CommandPath(), fmt.Errorf("--limit: must not be negative, is %d", o.Limit)}
			}
			c, w := api.NewClient(socket), cmd.OutOrStdout()
			switch {
			case json:
				return top.JSON(cmd.Context(), c, &o, w)
			case once || !isTerminal(w):
				return top.Once(cmd.Context(), c, &o, w)
			}
			return top.Live(cmd.Context(), c, &o, os.Stdin, w)
		},
	}
	addSocket(cmd, &socket)
	addOutput(cmd, &output, "table", "json")
	fs := cmd.Flags()
	fs.StringVar(&o.Tab, "tab", "services", "begin with this `table`: "+strings.Join(top.Names(), ", "))
	fs.StringVar(&o.Sort, "sort", "", "sort by this `column`")
	fs.BoolVar(&o.Reverse, "reverse", false, "sort in the other direction")
	fs.StringVar(&o.Filter, "filter", "", "show only rows with this `text`")
	fs.DurationVar(&o.Interval, "interval", 2*time.Second, "`time` between two looks")
	fs.BoolVar(&once, "once", false, "write the table once")
	fs.IntVar(&o.Limit, "limit", 0, "with --once or -o json, write at most this `number` of rows; 0: all")
	_ = cmd.RegisterFlagCompletionFunc("tab", cobra.FixedCompletions(top.Names(), cobra.ShellCompDirectiveNoFileComp))
	return cmd
}
