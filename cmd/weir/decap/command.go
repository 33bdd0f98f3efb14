// Package decap is `weir decap`: it receives the tunnel packets of the forwarding
// modes ipip and gue on an endpoint's node, and hands the inner packets to the kernel. It
// is for nodes whose kernel has no such tunnels, and a reference for the packets that Weir
// sends.
package decap

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strings"

	"github.com/spf13/cobra"
)

// Command makes the command.
func Command() *cobra.Command {
	o := &options{}
	cmd := &cobra.Command{
		Use:   "decap --address ADDRESS [flags]",
		Short: "Receive IP in IP and GUE on an endpoint's node",
		Long: `Receives packets of the forwarding modes ipip and gue: IP in IP (protocols 4 and
41, over IPv4 and IPv6) and GUE on UDP port 6080, variants 0 and 1. Inner packets
to one of the given addresses go to the kernel through a TUN device; answers leave
by the routes of the node.

The device holds the addresses that the node does not have, and is removed with
the command. While it exists, the node answers ARP only for addresses of the
interface that receives the request (net.ipv4.conf.all.arp_ignore=1,
arp_announce=2), so that it does not claim addresses that Weir announces. Both
sysctls are restored at the end, but not if the process is killed.

Clients learn the smaller MTU of the tunnel by ICMP errors from Weir. If these do
not reach them, --mss lowers the segment size that this node announces, with an
nftables table that is removed with the command, or by its next start.

Every host that can reach this node can send packets with any inner source: limit
the senders with --from, or by a firewall. The numbers of received and dropped
packets are printed at the end. Runs until SIGTERM. Needs root (CAP_NET_ADMIN,
CAP_NET_RAW).`,
		Example: `  weir decap --address 198.51.100.10 --address 2001:db8::10 --from 10.1.0.0/24
  weir decap --address 198.51.100.10 --mss 1420
  systemd-run --unit weir-decap weir decap --address 198.51.100.10 --from 10.1.0.1/32`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			rules, err := o.rules()
			if err != nil {
				return &usageError{err}
			}
			return Run(cmd.Context(), rules, o.Settings, cmd.ErrOrStderr())
		},
	}
	fs := cmd.Flags()
	fs.StringSliceVar(&o.addresses, "address", nil, "load balancer `address` of inner packets; repeat or separate by commas")
	fs.StringSliceVar(&o.from, "from", nil, "`prefix` of accepted senders, the addresses of Weir; default all")
	fs.StringVar(&o.Device, "device", "weir-decap", "`name` of the TUN device")
	fs.Uint16Var(&o.MSS, "mss", 0, "largest TCP segment to announce, in `bytes`; 0: as the kernel does")
	fs.BoolVar(&o.ZeroChecksum, "gue-zero-checksum", false, "accept GUE over IPv6 without a UDP checksum (RFC 6936)")
	fs.SortFlags = false
	return cmd
}

type options struct {
	addresses, from []string
	Settings
}

// Settings are the options beside the rules.
type Settings struct {
	Device       string // name of the TUN device
	ZeroChecksum bool   // take GUE over IPv6 without a UDP checksum
	MSS          uint16 // largest TCP segment to be announced; 0: any
}

// minMSS is the MSS that every host accepts (RFC 9293 section 3.7.1).
const minMSS = 536

// usageError is a command line that makes no sense.
type usageError struct{ error }

// ExitCode is 2.
func (*usageError) ExitCode() int { return 2 }

func (e *usageError) Unwrap() error { return e.error }

func (o *options) rules() (Rules, error) {
	var r Rules
	var errs []error
	for _, s := range o.addresses {
		a, err := netip.ParseAddr(s)
		if err != nil || a.Zone() != "" || martian(a.Unmap()) {
			errs = append(errs, fmt.Errorf("--address: %q is not a unicast address", s))
			continue
		}
		r.Addresses = append(r.Addresses, a.Unmap())
	}
	for _, s := range o.from {
		p, err := netip.ParsePrefix(s)
		if a, aerr := netip.ParseAddr(s); aerr == nil && a.Zone() == "" {
			p, err = netip.PrefixFrom(a, a.BitLen()), nil
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("--from: %q is neither a prefix nor an address", s))
			continue
		}
		r.From = append(r.From, p)
	}
	if len(o.addresses) == 0 {
		errs = append(errs, errors.New("--address is missing: which addresses does this node serve?"))
	}
	if o.MSS != 0 && o.MSS < minMSS {
		errs = append(errs, fmt.Errorf("--mss: %d is less than every host takes, %d", o.MSS, minMSS))
	}
	return r, errors.Join(errs...)
}

// Run receives until ctx ends. log gets a line when the receiver is ready and a line at the
// end.
func Run(ctx context.Context, rules Rules, set Settings, log io.Writer) (err error) {
	sources, err := openSources(set.ZeroChecksum)
	if err != nil {
		return err
	}
	defer closeSources(sources)
	dev, err := openDevice(set.Device, rules.Addresses)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	// That the ports are ours says that no other process uses the table.
	if set.MSS == 0 {
		_ = unclampMSS() // left by a killed process; without nftables there is none
	} else {
		if err := clampMSS(rules.Addresses, set.MSS); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, unclampMSS()) }()
	}
	r := newReceiver(rules, sources, dev.fd)
	fmt.Fprintf(log, "weir decap: ready: %s\n", list(sources))
	err = r.run(ctx)
	fmt.Fprintf(log, "weir decap: %s\n", r.summary())
	return err
}

func list(sources []source) string {
	var names []string
	for _, s := range sources {
		names = append(names, s.what)
	}
	return strings.Join(names, ", ")
}

// summary counts the outcomes of all packets.
func (r *receiver) summary() string {
	var out []string
	for d := range r.counts {
		if n := r.counts[d].Load(); n > 0 || Drop(d) == Delivered {
			out = append(out, fmt.Sprintf("%s %d", Drop(d), n))
		}
	}
	return strings.Join(out, ", ")
}
