package hostcheck

import (
	"net"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/lb/device"
	"github.com/weirlb/weir/lb/steer"
	"github.com/weirlb/weir/lb/vethpair"
	"github.com/weirlb/weir/perf/netlab"
	"github.com/weirlb/weir/perf/netlab/labtest"
)

// VLANs upon a veth whose peer, in the same namespace or in another, inserts tags: the note
// has the command that mends it.
func TestWireVLANTagsOfAVethsPeer(t *testing.T) {
	labtest.Require(t)
	lab, err := netlab.New()
	must(t, err)
	t.Cleanup(func() { must(t, lab.Close()) })
	node, err := lab.Namespace("node")
	must(t, err)
	far, err := lab.Namespace("far")
	must(t, err)
	for name, peer := range map[string]*netlab.Namespace{"here": node, "there": far} {
		must(t, netlab.Connect(netlab.End{Namespace: node, Name: name}, netlab.End{Namespace: peer, Name: "peer"}, netlab.LinkConfig{}))
	}
	for _, tt := range []struct {
		name     string
		veth     string
		peer     *netlab.Namespace
		vlan     uint16
		protocol uint16
		feature  string
		mend     string
	}{
		{"same namespace", "here", node, 100, unix.ETH_P_8021Q, "tx-vlan-hw-insert", "ethtool -K peer txvlan off"},
		{"another namespace", "there", far, 100, unix.ETH_P_8021Q, "tx-vlan-hw-insert", "-far ethtool -K peer txvlan off"},
		{"service tag", "there", far, 100, unix.ETH_P_8021AD, "tx-vlan-stag-hw-insert", "-far ethtool -K peer tx-vlan-stag-hw-insert off"},
		{"no VLAN", "there", far, 0, 0, "", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			veth, err := node.Interface(tt.veth)
			must(t, err)
			links := []device.Link{{Index: veth.Attrs().Index, Name: tt.veth, Kind: "veth", MAC: net.HardwareAddr{2, 0, 0, 0, 0, 1}}}
			ports := []device.Port{{Device: veth.Attrs().Index, VLAN: tt.vlan, Protocol: tt.protocol}}
			notes := func() (fs findings) {
				must(t, node.Do(func() error { checkPeerTags(&fs, "interface v", ports, links); return nil }))
				return fs
			}
			fs := notes()
			if tt.feature == "" {
				if len(fs) > 0 {
					t.Errorf("%+v", fs)
				}
				return
			}
			if len(fs) != 1 || fs[0].Level != Note || !strings.Contains(fs[0].Text, tt.feature+" is on at peer, the peer of "+tt.veth+": ") || !strings.HasSuffix(fs[0].Mend, tt.mend) {
				t.Fatalf("%+v, want a note with %q", fs, tt.mend)
			}
			if tt.peer == far && !strings.HasPrefix(fs[0].Mend, "ip netns exec ") {
				t.Errorf("%+v", fs)
			}
			must(t, tt.peer.SetOffloads("peer", map[string]bool{tt.feature: false}))
			if fs = notes(); len(fs) > 0 {
				t.Errorf("after the mend: %+v", fs)
			}
			must(t, tt.peer.SetOffloads("peer", map[string]bool{tt.feature: true}))
		})
	}
}

// A peer that sends lists of packets is reported once, with the command that ends it.
func TestWireFragmentListsOfAVethsPeer(t *testing.T) {
	labtest.Require(t)
	if p := steer.ProbeFrags(); !p.OK() {
		t.Skip("skipped: the kernel has no XDP programs for packets of several buffers")
	}
	lab, err := netlab.New()
	must(t, err)
	t.Cleanup(func() { must(t, lab.Close()) })
	node, err := lab.Namespace("node")
	must(t, err)
	far, err := lab.Namespace("far")
	must(t, err)
	must(t, netlab.Connect(netlab.End{Namespace: node, Name: "v"}, netlab.End{Namespace: far, Name: "peer"}, netlab.LinkConfig{}))
	veth, err := node.Interface("v")
	must(t, err)
	links := []device.Link{{Index: veth.Attrs().Index, Name: "v", Kind: "veth"}, {Index: 1 << 20, Name: "nic"}}
	ports := []device.Port{{Device: veth.Attrs().Index}, {Device: veth.Attrs().Index, VLAN: 100}, {Device: 1 << 20}}
	notes := func() (fs findings) {
		must(t, node.Do(func() error { checkPeerLists(&fs, "interface v", ports, links); return nil }))
		return fs
	}
	if fs := notes(); len(fs) != 1 || fs[0].Level != Note || !strings.Contains(fs[0].Text, " is on at peer, the peer of v: ") ||
		!strings.HasSuffix(fs[0].Mend, "-far ethtool -K peer "+vethpair.FragmentLists+" off") {
		t.Errorf("%+v", fs)
	}
	must(t, far.SetOffloads("peer", map[string]bool{vethpair.FragmentLists: false}))
	if fs := notes(); len(fs) > 0 {
		t.Errorf("after the mend: %+v", fs)
	}
}

// A peer that cannot be reached from here is named as such.
func TestVethWhosePeerIsOutOfReach(t *testing.T) {
	if _, err := namespaceOf(1 << 20); err == nil || !strings.Contains(err.Error(), "network namespace") {
		t.Errorf("%v", err)
	}
	var fs findings
	links := []device.Link{{Index: 1 << 20, Name: "gone", Kind: "veth"}}
	checkPeerTags(&fs, "interface v", []device.Port{{Device: 1 << 20, VLAN: 5, Protocol: unix.ETH_P_8021Q}}, links)
	if len(fs) != 1 || !strings.Contains(fs[0].Text, "the peer of gone cannot be examined") || !strings.Contains(fs[0].Mend, "ethtool -K PEER txvlan off") {
		t.Errorf("%+v", fs)
	}
}
