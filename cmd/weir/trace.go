package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/cmd/weir/config"
	"github.com/weirlb/weir/cmd/weir/view"
)

func newTrace() *cobra.Command {
	var (
		socket, output string
		live           bool
		q              api.PacketQuery
	)
	cmd := &cobra.Command{
		Use:   "trace --live [filter]",
		Short: "Show the verdicts on packets",
		Long: `With --live, shows packets that Weir handles as they come: the addresses before and after
the translation, the verdict, the drop reason, the Service and the endpoint. The filter is
as for weir capture. At most --rate packets per second and worker are shown; the others
are counted. Forwarding never waits.`,
		Example: `  weir trace --live service default/web
  weir trace --live --packets 10 -o json host 192.0.2.7 | jq .packet.verdict
  weir trace --live --rate 200 'tcp[tcpflags] & tcp-syn != 0'`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if output != "table" && output != "json" {
				return badOutput(cmd, output, "table", "json")
			}
			q.Filter = strings.Join(args, " ")
			err := checkBounds(&q)
			switch {
			case !live:
				err = errors.New("--live is required")
			case err == nil && q.Rate < 1:
				err = fmt.Errorf("--rate: must be positive, is %d", q.Rate)
			}
			if err != nil {
				return &usageError{cmd.CommandPath(), err}
			}
			return traceLive(cmd.Context(), api.NewClient(socket), &q, cmd.OutOrStdout(), cmd.ErrOrStderr(), output == "json")
		},
	}
	fs := cmd.Flags()
	fs.StringVar(&socket, "admin-socket", config.Default().Admin.Socket, "`path` of the daemon's socket")
	addOutput(cmd, &output, "table", "json")
	fs.BoolVar(&live, "live", false, "show real packets")
	fs.IntVarP(&q.Packets, "packets", "c", api.DefaultLivePackets, "end after this `number` of packets")
	fs.DurationVar(&q.Time, "duration", api.DefaultPacketTime, "end after this `time`")
	fs.IntVar(&q.Rate, "rate", api.DefaultLiveRate, "show at most this `number` of packets per second and worker")
	return cmd
}

// traceLive shows packets until a bound is reached or ctx ends.
func traceLive(ctx context.Context, c *api.Client, q *api.PacketQuery, stdout, stderr io.Writer, asJSON bool) error {
	var last api.Live
	lines := json.NewEncoder(stdout)
	err := c.Live(ctx, q, func(l *api.Live) error {
		last = *l
		switch {
		case l.Packet == nil:
			return nil
		case asJSON:
			return lines.Encode(l)
		}
		return view.Packet(stdout, l.Packet)
	})
	if err == nil {
		fmt.Fprintf(stderr, "weir: %d packets beyond the rate, %d lost\n", last.Skipped, last.Lost)
	}
	return err
}
