package ports

import (
	"strings"
	"testing"

	"github.com/weirlb/weir/lb/xsk"
)

// VLANs send by the queues of their device: they take no part of the frames from
// it.
func TestVLANsTakeNoFrames(t *testing.T) {
	ps := newPorts(Config{})
	ps.list.ports = []*port{{vlanParent: -1}}
	for range 30 {
		ps.list.ports = append(ps.list.ports, &port{vlanParent: 0})
	}
	ps.AddHost(Host{Name: "weir-xdp"})
	if n := ps.Devices(); n != 2 {
		t.Fatalf("%d devices, want 2", n)
	}
}

// Without packets of several buffers, larger packets than a frame are lost.
func TestAnMTUThatNoFrameHoldsIsWarnedOf(t *testing.T) {
	for _, test := range []struct {
		mtu, opened int
		several     bool
		want        string
	}{
		{9000, 9000, false, "its MTU is 9000, and packets of more than 3500 bytes are lost: AF_XDP multi-buffer is not granted"},
		{9000, 1500, false, "its MTU is 9000, and packets of more than 3500 bytes are lost: restart Weir to use buffers for this MTU"},
		{9000, 9000, true, ""}, {3500, 3500, false, ""}, {1500, 1500, false, ""},
	} {
		got := tooLarge(test.mtu, test.opened, 3500, test.several)
		if got != test.want && (test.want == "" || !strings.HasPrefix(got, test.want)) {
			t.Errorf("MTU %d, several buffers %v: %q, want %q", test.mtu, test.several, got, test.want)
		}
	}
}

// Frames are small as long as every interface's packets, tags included, fit.
func TestFramesAreAsLargeAsTheLargestMTUNeeds(t *testing.T) {
	for _, test := range []struct{ mtu, want int }{
		{1500, xsk.SmallFrameSize}, {1536, xsk.SmallFrameSize}, {1537, xsk.FrameSize}, {9000, xsk.FrameSize},
	} {
		ps := newPorts(Config{})
		ps.list.ports = []*port{{mtu: 1500, vlanParent: -1}, {mtu: test.mtu, vlanParent: -1}}
		got, _ := ps.FrameSize()
		if got != test.want {
			t.Errorf("MTU %d: frames of %d bytes, want %d", test.mtu, got, test.want)
		}
		const ethernet, twoTags = 14, 8
		if whole := xsk.Headroom + ethernet + twoTags + test.mtu; test.mtu < 9000 && whole > got {
			t.Errorf("MTU %d: a packet ends at byte %d of a frame of %d", test.mtu, whole, got)
		}
	}
}
