package hostcheck

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/safchain/ethtool"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/lb/device"
	"github.com/weirlb/weir/lb/steer"
	"github.com/weirlb/weir/lb/vethpair"
)

// vethPeer is the other end of a veth.
type vethPeer struct {
	name  string
	enter string // how a command gets into the network namespace of the peer, "" for none
	has   bool   // the feature in question
}

// tagInsertion is the feature by which an interface inserts tags of a protocol, as the kernel
// and `ethtool -K` name it.
func tagInsertion(protocol uint16) (feature, setting string) {
	if protocol == unix.ETH_P_8021AD {
		return "tx-vlan-stag-hw-insert", "tx-vlan-stag-hw-insert"
	}
	return "tx-vlan-hw-insert", "txvlan"
}

// checkPeerTags reports VLANs upon a veth whose peer leaves the insertion of tags to the
// device. A veth inserts none: the tag stays in the metadata of the packet, where an XDP
// program does not find it, and the packet goes to the kernel.
func checkPeerTags(fs *findings, subject string, ports []device.Port, links []device.Link) {
	for _, p := range ports {
		i := slices.IndexFunc(links, func(l device.Link) bool { return l.Index == p.Device })
		if p.VLAN == 0 || i < 0 || links[i].Kind != "veth" {
			continue
		}
		feature, setting := tagInsertion(p.Protocol)
		peer, err := peerOf(p.Device, feature)
		const lost = "which Weir then does not see: the packets of the VLAN go to the kernel"
		switch {
		case err != nil:
			fs.add(Note, subject, "the peer of %s cannot be examined (%v): if %s is on there, VLAN tags come beside the packets, %s",
				links[i].Name, err, feature, lost)
			fs.mend("in the network namespace of the peer: ethtool -K PEER %s off", setting)
		case peer.has:
			fs.add(Note, subject, "%s is on at %s, the peer of %s: VLAN tags come beside the packets, %s", feature, peer.name, links[i].Name, lost)
			fs.mend("%sethtool -K %s %s off", peer.enter, peer.name, setting)
		}
	}
}

// checkPeerLists reports a veth whose peer sends lists of packets as one, on kernels with XDP
// for packets of several buffers. See vethpair.FragmentLists.
func checkPeerLists(fs *findings, subject string, ports []device.Port, links []device.Link) {
	seen := map[int]bool{}
	for _, p := range ports {
		i := slices.IndexFunc(links, func(l device.Link) bool { return l.Index == p.Device })
		if seen[p.Device] || i < 0 || links[i].Kind != "veth" || !steer.ProbeFrags().OK() {
			continue
		}
		seen[p.Device] = true
		const feature = vethpair.FragmentLists
		const harm = "the kernel may lose the packets of a tunnel that it merged, or panic (before Linux 7.3)"
		switch peer, err := peerOf(p.Device, feature); {
		case err != nil:
			fs.add(Note, subject, "the peer of %s cannot be examined (%v): if %s is on there, %s", links[i].Name, err, feature, harm)
			fs.mend("in the network namespace of the peer: ethtool -K PEER %s off", feature)
		case peer.has:
			fs.add(Note, subject, "%s is on at %s, the peer of %s: %s", feature, peer.name, links[i].Name, harm)
			fs.mend("%sethtool -K %s %s off", peer.enter, peer.name, feature)
		}
	}
}

// peerOf examines the other end of a veth for a feature. The peer may be in another network
// namespace.
func peerOf(index int, feature string) (peer vethPeer, err error) {
	l, err := netlink.LinkByIndex(index)
	if err != nil {
		return peer, err
	}
	a := l.Attrs()
	if a.NetNsID < 0 {
		return featureOf(a.ParentIndex, feature)
	}
	ns, err := namespaceOf(a.NetNsID)
	if err != nil {
		return peer, err
	}
	defer ns.Close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // for good: the thread ends with the goroutine
		if err = unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
			err = fmt.Errorf("enter %s: %w", ns.Name(), err)
			return
		}
		peer, err = featureOf(a.ParentIndex, feature)
	}()
	<-done
	peer.enter = "nsenter --net=" + ns.Name() + " "
	if name, ok := strings.CutPrefix(ns.Name(), namedSpaces); ok {
		peer.enter = "ip netns exec " + name + " "
	}
	return peer, err
}

// featureOf examines an interface of the thread's network namespace.
func featureOf(index int, feature string) (vethPeer, error) {
	l, err := netlink.LinkByIndex(index)
	if err != nil {
		return vethPeer{}, err
	}
	name := l.Attrs().Name
	tool, err := ethtool.NewEthtool()
	if err != nil {
		return vethPeer{}, fmt.Errorf("features of %s: %w", name, err)
	}
	defer tool.Close()
	features, err := tool.Features(name)
	if err != nil {
		return vethPeer{}, fmt.Errorf("features of %s: %w", name, err)
	}
	return vethPeer{name: name, has: features[feature]}, nil
}

// namedSpaces is where ip-netns(8) keeps network namespaces.
const namedSpaces = "/run/netns/"

// namespaceOf opens the network namespace that the thread's own has given an ID to: those
// with a name, and those of threads.
func namespaceOf(id int) (*os.File, error) {
	var files []string
	for _, pattern := range []string{namedSpaces + "*", "/proc/[0-9]*/ns/net", "/proc/[0-9]*/task/[0-9]*/ns/net"} {
		list, err := filepath.Glob(pattern)
		if err != nil {
			return nil, err
		}
		files = append(files, list...)
	}
	seen := map[uint64]bool{}
	for _, name := range files {
		var st unix.Stat_t
		if unix.Stat(name, &st) != nil || seen[st.Ino] {
			continue
		}
		seen[st.Ino] = true
		f, err := os.Open(name)
		if err != nil {
			continue
		}
		if got, err := netlink.GetNetNsIdByFd(int(f.Fd())); err == nil && got == id {
			return f, nil
		}
		f.Close()
	}
	return nil, errors.New("its network namespace has neither a name nor a process here")
}
