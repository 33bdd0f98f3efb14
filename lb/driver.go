package lb

import (
	"errors"
	"fmt"

	"github.com/weirlb/weir/lb/xsk"
)

// Who completes the partial checksums of packets that leave by an interface, as
// in the configuration file.
const (
	TxChecksumAuto     = "auto"
	TxChecksumMetadata = "metadata"
	TxChecksumSoftware = "software"
)

// What is known of drivers and cannot be probed, because it shows on the wire only.

const veth = "veth"

// metadataFor returns whether an interface of a kind is to be opened for TX
// metadata, and whether it is to be used with zero copy alone.
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
// features are what it says of itself, err why it says nothing (before Linux 6.3).
func canZeroCopy(kind string, features xsk.Features, err error) bool {
	return kind != veth && (err != nil || features.ZeroCopy())
}

// mayZeroCopy reports whether the port may come to run with zero copy.
func (i *iface) mayZeroCopy() bool {
	return !i.host && (i.mode == ModeZeroCopy || i.mode == ModeAuto && i.zeroCopy)
}

// frameSize is the size of the frames of the packet memory, and why it is not the
// smallest.
//
// Frames are large where a packet does not fit into a small one, and where zero copy
// may be granted. Intel's drivers tell the NIC the size of a receive buffer in units of
// 1,024 bytes (SRRCTL.BSIZEPKT in igb, igc and ixgbe). Of a frame of 2,048 bytes there
// remain 1,792 behind the headroom, so that the NIC splits each packet of more than
// 1,024 bytes, and igb passes on the pieces as packets. Small frames are for veth and
// copy mode, where a packet is cheaper with them.
func (l *LB) frameSize() (size int, why string) {
	if l.cfg.FrameSize != 0 {
		return l.cfg.FrameSize, "it is configured"
	}
	for _, i := range l.ifaces {
		if i.mtu > largestMTU(xsk.SmallFrameSize) {
			return xsk.FrameSize, fmt.Sprintf("the MTU of %s is %d", i.name, i.mtu)
		}
	}
	for _, i := range l.ifaces {
		if i.mayZeroCopy() {
			return xsk.FrameSize, fmt.Sprintf("%s may run with zero copy, where some NICs split packets of more than 1,024 bytes if frames are smaller", i.name)
		}
	}
	return xsk.SmallFrameSize, ""
}

// errFrames is why a device that is new since the start cannot have zero copy.
var errFrames = errors.New("zero copy needs packet memory with frames of 4,096 bytes, which is made at the start: restart Weir")

// socketModeOf is the mode that sockets of a port are opened in.
func (l *LB) socketModeOf(i *iface) (xsk.Mode, error) {
	if l.cfg.FrameSize == 0 && l.memory.FrameSize() < xsk.FrameSize && i.mayZeroCopy() {
		if i.mode == ModeZeroCopy {
			return xsk.ZeroCopy, errFrames
		}
		l.warnInterface(i.name, "runs without zero copy: %v", errFrames)
		return xsk.Copy, nil
	}
	return i.socketMode(), nil
}

// checkMetadata compares what a port was granted with what was asked for.
func (l *LB) checkMetadata(i *iface) error {
	if i.host || len(i.sockets) == 0 {
		return nil
	}
	zeroCopy, metadata, _ := i.sockets[0].Granted()
	switch {
	case metadata:
	case i.txChecksum == TxChecksumMetadata:
		return fmt.Errorf("interface %s: txChecksum: metadata is not granted, by the kernel or with zero copy by the driver (%v): use auto or software", i.name, xsk.ProbeTxMetadata())
	case i.txChecksum != TxChecksumSoftware && !zeroCopy && i.sockets[0].KernelMetadata():
		l.log.Info("partial checksums are completed in software: before Linux 6.18 some drivers ignore TX metadata in copy mode; txChecksum: metadata uses it all the same", "interface", i.name)
	}
	return nil
}
