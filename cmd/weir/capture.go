package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/cmd/weir/config"
	"github.com/weirlb/weir/cmd/weir/pcapng"
)

func newCapture() *cobra.Command {
	var (
		socket, file string
		q            api.PacketQuery
	)
	cmd := &cobra.Command{
		Use:   "capture [filter] -w file",
		Short: "Write packets that Weir handles to a pcapng file",
		Long: `Writes packets that Weir takes from the interfaces, most of which tcpdump does not see, to a
file for Wireshark. Received and sent frames are on interfaces of their own. The comment
of a frame has the verdict, the drop reason, the Service, and the connection with client,
frontend, endpoint and SNAT address; it is the same for both frames of a packet, as is
the packet ID. The comment's connection number joins both directions.

The filter is an expression as of tcpdump, or service NAMESPACE/NAME for all frontends
of a Service. It selects a packet by the received or the sent frame, so that "host
ENDPOINT" and "host CLIENT" both select whole connections.

The capture is bounded by --packets, --bytes and --duration and ends when this command
does. Frames that come faster than they are read are lost. Their number is shown at the
end, and the file has it, in the statistics of each interface; forwarding never waits.
Established flows that the kernel's flow cache forwards take the packet loop meanwhile.`,
		Example: `  weir capture -w all.pcapng --duration 10s
  weir capture -w web.pcapng service default/web
  weir capture -w - host 192.0.2.7 and tcp port 443 | tshark -r -
  weir capture -w syn.pcapng --packets 100 'tcp[tcpflags] & tcp-syn != 0'`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			q.Filter = strings.Join(args, " ")
			if err := checkBounds(&q); err != nil {
				return &usageError{cmd.CommandPath(), err}
			}
			return capture(cmd.Context(), api.NewClient(socket), &q, file, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	fs := cmd.Flags()
	fs.StringVar(&socket, "admin-socket", config.Default().Admin.Socket, "`path` of the daemon's socket")
	fs.StringVarP(&file, "write", "w", "", "`file` to write, - for standard output")
	fs.IntVarP(&q.Packets, "packets", "c", 0, "end after this `number` of packets")
	fs.IntVar(&q.Bytes, "bytes", 256<<20, "end after this `number` of bytes of frames, 0: any")
	fs.DurationVar(&q.Time, "duration", api.DefaultPacketTime, "end after this `time`")
	fs.IntVarP(&q.SnapLen, "snaplen", "s", api.DefaultSnapLen, "`bytes` of a frame to write")
	_ = cmd.MarkFlagRequired("write")
	return cmd
}

// checkBounds refuses bounds that the daemon would replace.
func checkBounds(q *api.PacketQuery) error {
	switch {
	case q.Packets < 0 || q.Packets > api.MaxPackets:
		return fmt.Errorf("--packets: must be from 1 to %d, is %d", api.MaxPackets, q.Packets)
	case q.Bytes < 0:
		return fmt.Errorf("--bytes: must not be negative, is %d", q.Bytes)
	case q.Time < time.Second || q.Time > api.MaxPacketTime:
		return fmt.Errorf("--duration: must be from 1s to %v, is %v", api.MaxPacketTime, q.Time)
	case q.SnapLen != 0 && (q.SnapLen < 64 || q.SnapLen > api.MaxSnapLen):
		return fmt.Errorf("--snaplen: must be from 64 to %d, is %d", api.MaxSnapLen, q.SnapLen)
	}
	return nil
}

// capture writes a capture to the file, until it ends or ctx does.
func capture(ctx context.Context, c *api.Client, q *api.PacketQuery, file string, stdout, stderr io.Writer) (err error) {
	if file == "-" && isTerminal(stdout) {
		return &usageError{"weir capture", errors.New("--write -: standard output is a terminal")}
	}
	body, err := c.Capture(ctx, q)
	if err != nil {
		return err
	}
	defer body.Close()
	to := stdout
	if file != "-" {
		f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, f.Close()) }()
		to = f
	}
	frames, lost, err := pcapng.Copy(to, body)
	switch {
	case ctx.Err() != nil: // the user has seen enough
		err = nil
	case errors.Is(err, io.ErrUnexpectedEOF):
		err = errors.New("the daemon ended before the capture did: the file has what came until then")
	}
	fmt.Fprintf(stderr, "weir: %d frames captured, %d lost\n", frames, lost)
	if lost > 0 {
		fmt.Fprintln(stderr, "weir: the statistics of the interfaces in the file have the lost frames; a filter or --snaplen makes them fewer")
	}
	return err
}
