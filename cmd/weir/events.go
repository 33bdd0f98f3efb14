package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/cmd/weir/event"
	"github.com/weirlb/weir/cmd/weir/view"
)

func newEvents() *cobra.Command {
	var (
		socket, output string
		filter         api.EventFilter
		follow         bool
	)
	cmd := &cobra.Command{
		Use:   "events [NAMESPACE/NAME]",
		Short: "Show what has changed: tiers, endpoints, interfaces, the source of Services",
		Long: `Shows the last 1,000 changes of the running Weir, of all Services or of one: another tier
in use and the cause, endpoints that came or went, interfaces that are absent, a source
that does not answer, reloads, drains. An event that repeats is counted. The list begins
with this process.`,
		Example: `  weir events
  weir events default/web --since 10m
  weir events --kind tier-changed -o json | jq '.events[].text'
  weir events --follow`,
		Args: atMostOne("Service"), ValidArgsFunction: completeServices,
		RunE: func(cmd *cobra.Command, args []string) error {
			asJSON, err := asJSON(cmd, output)
			if err != nil {
				return err
			}
			if filter.Since < 0 {
				return &usageError{cmd.CommandPath(), fmt.Errorf("--since: must not be negative")}
			}
			filter.Service = first(args)
			c, out := api.NewClient(socket), cmd.OutOrStdout()
			if follow {
				return followEvents(cmd.Context(), out, c, filter, asJSON)
			}
			l, err := c.Events(cmd.Context(), &filter)
			switch {
			case err != nil:
				return err
			case asJSON:
				return printJSON(out, l)
			}
			return view.Events(out, l)
		},
	}
	addSocket(cmd, &socket)
	addOutput(cmd, &output, "table", "json")
	fs := cmd.Flags()
	fs.StringVar(&filter.Kind, "kind", "", "show events of this `kind`")
	fs.DurationVar(&filter.Since, "since", 0, "show events that occurred within this `time`")
	fs.BoolVarP(&follow, "follow", "f", false, "show events, and then those that occur, until interrupted")
	var kinds []string
	for _, k := range event.Kinds {
		kinds = append(kinds, string(k.Kind)+"\t"+k.Text)
	}
	_ = cmd.RegisterFlagCompletionFunc("kind", cobra.FixedCompletions(kinds, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// followEvents shows events as they occur, a line for each, until ctx ends.
func followEvents(ctx context.Context, w io.Writer, c *api.Client, filter api.EventFilter, asJSON bool) error {
	t := time.NewTicker(followEvery)
	defer t.Stop()
	for {
		l, err := c.Events(ctx, &filter)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		if l.Last < filter.After { // another process counts from 0
			filter.After = 0
			continue
		}
		for i := range l.Events {
			if asJSON {
				err = json.NewEncoder(w).Encode(&l.Events[i])
			} else {
				err = view.Event(w, &l.Events[i])
			}
			if err != nil {
				return err
			}
		}
		filter.After = l.Last
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
	}
}
