package ports

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	"github.com/weirlb/weir/lb/device"
	"github.com/weirlb/weir/lb/steer"
	"github.com/weirlb/weir/lb/xsk"
)

// TxChecksum values, as in the configuration file: the kernel or the device completes
// the partial checksums of packets that leave by an interface, or Weir does.
const (
	TxChecksumAuto     = "auto"
	TxChecksumMetadata = "metadata"
	TxChecksumSoftware = "software"
)

// veth is the kind of link whose behavior is known. It cannot be probed, because it
// shows on the wire only.
const veth = "veth"

// driverOf is the driver of a NIC, and of another link the kind.
func driverOf(l *device.Link) string {
	if l.Kind != "device" {
		return l.Kind
	}
	return cmp.Or(steer.DriverOf(l.Name), l.Kind)
}

// metadataFor reports whether an interface of a kind is opened for TX metadata, and
// whether metadata is used with zero copy alone.
//
// In copy mode a kernel that takes the metadata need not act upon it. Drivers with
// IFF_TX_SKB_NO_LINEAR, of which virtio_net is one, have their packets built by
// xsk_build_skb_zerocopy, which ignored it up to Linux 6.17 without an error: the
// checksum stayed the sum of the pseudo header. Commit 30c3055f9c0d ("xsk: wrap
// generic metadata handling onto separate function", Linux 6.18) mends that. Nothing
// tells which kernel has it, and a test would have to put frames on the operator's
// network. So auto relies on it where it is known to work: on veth. With zero copy the
// driver itself lists the feature, which xsk.Open asks for.
func metadataFor(asked, kind string) (use, zeroCopyOnly bool) {
	switch asked {
	case TxChecksumSoftware:
		return false, false
	case TxChecksumMetadata:
		return true, false
	}
	return true, kind != veth
}

// canZeroCopy reports whether the driver of an interface may grant zero copy.
// features are those that it reports, err why it reports none (before Linux 6.3).
func canZeroCopy(kind string, features xsk.Features, err error) bool {
	return kind != veth && (err != nil || features.ZeroCopy())
}

// queuePerCPU are drivers that send a packet that XDP has redirected by the queue with the number
// of the CPU, and drop it, counted nowhere, if there is none (mlx5e_xdp_xmit, i40e_xdp_xmit).
var queuePerCPU = []string{"i40e", "mlx5_core"}

// sendsFromEachCPU reports whether packets that XDP redirects to a device leave, whatever the CPU.
func sendsFromEachCPU(p *port) bool {
	if !slices.Contains(queuePerCPU, p.driver) {
		return true
	}
	q, err := steer.RxQueues(p.index)
	return err == nil && hasQueuePerCPU(p.driver, q.Rx, os.DirFS("/sys"))
}

// hasQueuePerCPU is sendsFromEachCPU of a driver and a number of queues, with sysfs at sys.
func hasQueuePerCPU(driver string, queues int, sys fs.FS) bool {
	if !slices.Contains(queuePerCPU, driver) {
		return true
	}
	online := device.Online(sys)
	return len(online) > 0 && slices.Max(online) < queues
}

// isZeroCopy reports whether the packets of a socket's queue are in frames of Weir's. A program that
// redirects such a packet has it copied, of a packet of several buffers the first alone
// (xdp_convert_zc_to_xdp_frame).
func isZeroCopy(s *xsk.Socket) bool {
	zeroCopy, _, _ := s.Granted()
	return zeroCopy
}

// mayZeroCopy reports whether the port may come to run with zero copy.
func (p *port) mayZeroCopy() bool {
	return !p.host && (p.mode == ModeZeroCopy || p.mode == ModeAuto && p.zeroCopy)
}

// errFrames is why a device that is new since the start cannot have zero copy.
var errFrames = errors.New("zero copy needs packet memory with frames of 4,096 bytes, " +
	"which is made at the start: restart Weir")

// checkMetadata compares the TX metadata that a port was granted with the configuration.
func (ps *Ports) checkMetadata(p *port) error {
	if p.host || len(p.sockets) == 0 {
		return nil
	}
	zeroCopy, metadata, _ := p.sockets[0].Granted()
	switch {
	case metadata:
	case p.txChecksum == TxChecksumMetadata:
		return fmt.Errorf("interface %s: txChecksum: metadata is not granted, "+
			"by the kernel or with zero copy by the driver (%v): use auto or software",
			p.name, xsk.ProbeTxMetadata())
	case p.txChecksum != TxChecksumSoftware && !zeroCopy && p.sockets[0].KernelMetadata():
		ps.log.Info("partial checksums are completed in software: "+
			"before Linux 6.18 some drivers ignore TX metadata in copy mode; "+
			"txChecksum: metadata uses it all the same", "interface", p.name)
	}
	return nil
}
