package main

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strings"

	"github.com/spf13/cobra"

	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/cmd/weir/config"
	"github.com/weirlb/weir/cmd/weir/view"
)

// traceFlags are the flags of weir trace.
type traceFlags struct {
	socket, output         string
	live                   bool
	packets                api.PacketQuery
	packet                 api.TraceQuery
	source, dest, protocol string
	frame                  string
}

func newTrace() *cobra.Command {
	var o traceFlags
	cmd := &cobra.Command{
		Use:   "trace {--src ADDRESS:PORT --dst ADDRESS:PORT [--proto PROTOCOL] | --frame HEX | --live [filter]}",
		Short: "Show what becomes of a packet, and why",
		Long: `With --src and --dst, shows what this node would do now with such a packet, and each
decision on the way: the verdict of the steering program, the connection, the Service
with tier and limits, the endpoint and the rule that chose it, the SNAT port, the next
hop, and the packet that would leave or the reason why none does. A worker takes the
packet through its stages, with a copy of what the packet would change. Nothing is sent.
Limits of the rate of answers count as unused, and of an SCTP association the first
packet is traced, an INIT.

With --frame the packet is an Ethernet frame, as Wireshark copies it "as a hex stream": a
fragment, an ICMP error, a packet with options. A fragment other than the first is traced
by what the worker knows of the datagram at that moment.

With --live, shows packets that Weir handles as they come: the addresses before and after
the translation, the verdict, the drop reason, the Service and the endpoint. The filter is
as for weir capture. At most --rate packets per second and worker are shown; the others
are counted. Forwarding never waits.`,
		Example: `  weir trace --src 192.0.2.7:40000 --dst 203.0.113.1:80
  weir trace --proto udp --src 192.0.2.7:40000 --dst 203.0.113.1:53 --interface eth1 -o json
  weir trace --frame 02000000000102000000000208004500... --interface eth0
  weir trace --live service default/web
  weir trace --live --packets 10 -o json host 192.0.2.7 | jq .packet.verdict
  weir trace --live --rate 200 'tcp[tcpflags] & tcp-syn != 0'`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if o.output != "table" && o.output != "json" {
				return badOutput(cmd, o.output, "table", "json")
			}
			if err := o.check(args); err != nil {
				return &usageError{cmd.CommandPath(), err}
			}
			c, json := api.NewClient(o.socket), o.output == "json"
			if o.live {
				return traceLive(cmd.Context(), c, &o.packets, cmd.OutOrStdout(), cmd.ErrOrStderr(), json)
			}
			return tracePacket(cmd.Context(), c, &o.packet, cmd.OutOrStdout(), json)
		},
	}
	fs := cmd.Flags()
	fs.StringVar(&o.socket, "admin-socket", config.Default().Admin.Socket, "`path` of the daemon's socket")
	addOutput(cmd, &o.output, "table", "json")
	fs.StringVar(&o.protocol, "proto", "tcp", "`protocol`: tcp, udp or sctp")
	fs.StringVar(&o.source, "src", "", "source of the packet, `address:port`")
	fs.StringVar(&o.dest, "dst", "", "destination of the packet, `address:port`")
	fs.StringVar(&o.frame, "frame", "", "the packet as an Ethernet frame, in `hex` digits")
	fs.StringVar(&o.packet.Interface, "interface", "", "`interface` by which the packet comes; default: that of the route back to the source")
	fs.StringVar(&o.packet.Flags, "tcp-flags", "", "`flags` such as syn,ack; default: syn, or ack where a connection exists")
	fs.IntVar(&o.packet.TTL, "ttl", api.DefaultTraceTTL, "TTL or hop limit")
	fs.IntVar(&o.packet.Payload, "payload", 0, "`bytes` behind the header of TCP or UDP")
	fs.BoolVar(&o.packet.DontFragment, "df", false, "set the DF bit of IPv4")
	fs.BoolVar(&o.live, "live", false, "show real packets")
	fs.IntVarP(&o.packets.Packets, "packets", "c", api.DefaultLivePackets, "with --live: end after this `number` of packets")
	fs.DurationVar(&o.packets.Time, "duration", api.DefaultPacketTime, "with --live: end after this `time`")
	fs.IntVar(&o.packets.Rate, "rate", api.DefaultLiveRate, "with --live: show at most this `number` of packets per second and worker")
	_ = cmd.RegisterFlagCompletionFunc("proto", cobra.FixedCompletions([]string{"tcp", "udp", "sctp"}, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// check completes the queries, and returns the errors of the flags.
func (o *traceFlags) check(args []string) error {
	if o.live {
		if o.source != "" || o.dest != "" || o.frame != "" {
			return errors.New("--live and --src, --dst, --frame exclude each other")
		}
		o.packets.Filter = strings.Join(args, " ")
		if o.packets.Rate < 1 {
			return fmt.Errorf("--rate: must be positive, is %d", o.packets.Rate)
		}
		return checkBounds(&o.packets)
	}
	if len(args) > 0 {
		return fmt.Errorf("a filter (%q) needs --live", strings.Join(args, " "))
	}
	var err error
	if o.frame != "" {
		if o.source != "" || o.dest != "" {
			return errors.New("--frame and --src, --dst exclude each other")
		}
		if o.packet.Frame, err = hex.DecodeString(strings.Join(strings.Fields(o.frame), "")); err != nil {
			return fmt.Errorf("--frame: %w", err)
		}
		return o.packet.Check()
	}
	if o.source == "" || o.dest == "" {
		return errors.New("--src and --dst, --frame, or --live, are required")
	}
	if o.packet.Source, err = netip.ParseAddrPort(o.source); err != nil {
		return fmt.Errorf("--src: must be ADDRESS:PORT, is %q", o.source)
	}
	if o.packet.Destination, err = netip.ParseAddrPort(o.dest); err != nil {
		return fmt.Errorf("--dst: must be ADDRESS:PORT, is %q", o.dest)
	}
	o.packet.Protocol = strings.ToUpper(o.protocol)
	return o.packet.Check()
}

// tracePacket shows what the node would do with a packet.
func tracePacket(ctx context.Context, c *api.Client, q *api.TraceQuery, stdout io.Writer, asJSON bool) error {
	t, err := c.Trace(ctx, q)
	switch {
	case err != nil:
		return err
	case asJSON:
		return printJSON(stdout, t)
	}
	return view.Trace(stdout, t)
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
