package ports

import (
	"cmp"
	"io/fs"
	"slices"

	"github.com/weirlb/weir/lb/device"
	"github.com/weirlb/weir/lb/steer"
	"github.com/weirlb/weir/lb/xsk"
)

// veth is the kind of link whose behavior is known. It cannot be probed, because it
// shows on the wire only.
const veth = "veth"

// forgetful are drivers that forget a native XDP program when they stop the device: it was set
// down, got another MTU or other rings, or was reset after a hang. The kernel goes on reporting
// the program as attached, and gets all packets (vmxnet3_rq_cleanup_all, Linux 6.6 on).
var forgetful = []string{"vmxnet3"}

// softwareKinds are the kinds of link whose packets the kernel has in buffers already, up to
// 64 KB at a time. XDP there gains nothing, and ends segmentation offload.
var softwareKinds = []string{veth, "netkit", "tuntap", "tun"}

// softwareDrivers are as softwareKinds, of devices that rtnetlink does not tell from NICs.
var softwareDrivers = []string{"virtio_net"}

// queuePerCPU are drivers that send a packet that XDP has redirected by the queue with the number
// of the CPU, and drop it, counted nowhere, if there is none (mlx5e_xdp_xmit, i40e_xdp_xmit).
var queuePerCPU = []string{"i40e", "mlx5_core"}

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

// hasQueuePerCPU is sendsFromEachCPU of a driver and a number of queues, with sysfs at sys.
func hasQueuePerCPU(driver string, queues int, sys fs.FS) bool {
	if !slices.Contains(queuePerCPU, driver) {
		return true
	}
	online := device.Online(sys)
	return len(online) > 0 && slices.Max(online) < queues
}

// Software reports whether XDP gains nothing on a device of the calling thread's network
// namespace. kind is rtnetlink's name of the kind.
func Software(kind, name string) bool {
	return slices.Contains(softwareKinds, kind) || slices.Contains(softwareDrivers, steer.DriverOf(name))
}
