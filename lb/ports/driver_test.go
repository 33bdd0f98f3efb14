package ports

import (
	"errors"
	"log/slog"
	"testing"

	"github.com/weirlb/weir/lb/warning"
	"github.com/weirlb/weir/lb/xsk"
)

const nic = "device" // what rtnetlink calls hardware

// In copy mode TX metadata is relied on where it is known to work, and where it is
// asked for.
func TestMetadataIsForDriversThatActUponIt(t *testing.T) {
	for _, test := range []struct {
		asked, kind       string
		use, zeroCopyOnly bool
	}{
		{TxChecksumAuto, veth, true, false},
		{"", veth, true, false}, // the host veth
		{TxChecksumAuto, nic, true, true},
		{TxChecksumAuto, "netdevsim", true, true},
		{TxChecksumMetadata, nic, true, false},
		{TxChecksumMetadata, veth, true, false},
		{TxChecksumSoftware, nic, false, false},
		{TxChecksumSoftware, veth, false, false},
	} {
		use, zeroCopyOnly := metadataFor(test.asked, test.kind)
		if use != test.use || zeroCopyOnly != test.zeroCopyOnly {
			t.Errorf("%q on a %s: use %t, with zero copy only %t", test.asked, test.kind, use, zeroCopyOnly)
		}
	}
}

// Frames are large wherever zero copy may be granted, since some NICs then split the
// packets of small ones.
func TestFramesAreLargeWhereZeroCopyMayBeGranted(t *testing.T) {
	const zeroCopy = 1 << 3 // NETDEV_XDP_ACT_XSK_ZEROCOPY
	for _, test := range []struct {
		name, kind, mode string
		features         xsk.Features
		err              error
		configured, want int
	}{
		{name: "veth", kind: veth, mode: ModeAuto, want: 2048},
		{name: "veth, old kernel", kind: veth, mode: ModeAuto, err: xsk.ErrNoNetdevFamily, want: 2048},
		{name: "NIC with zero copy", kind: nic, mode: ModeAuto, features: xsk.Features{XDP: zeroCopy}, want: 4096},
		{name: "NIC without", kind: nic, mode: ModeAuto, features: xsk.Features{XDP: 1}, want: 2048},
		{name: "NIC that says nothing", kind: nic, mode: ModeAuto, err: xsk.ErrNoNetdevFamily, want: 4096},
		{name: "NIC in copy mode", kind: nic, mode: ModeNative, features: xsk.Features{XDP: zeroCopy}, want: 2048},
		{name: "NIC in generic mode", kind: nic, mode: ModeGeneric, err: xsk.ErrNoNetdevFamily, want: 2048},
		{name: "zero copy asked for", kind: nic, mode: ModeZeroCopy, want: 4096},
		{name: "small ones configured", kind: nic, mode: ModeZeroCopy, features: xsk.Features{XDP: zeroCopy}, configured: 2048, want: 2048},
		{name: "large ones configured", kind: veth, mode: ModeAuto, configured: 4096, want: 4096},
	} {
		p := &port{name: "eth0", mtu: 1500, mode: test.mode, zeroCopy: canZeroCopy(test.kind, test.features, test.err), vlanParent: -1}
		host := &port{mtu: 1500, host: true, mode: ModeNative, vlanParent: -1}
		ps := newPorts(Config{FrameSize: test.configured})
		ps.list.ports = []*port{p, host}
		size, why := ps.FrameSize()
		if size != test.want || (size == xsk.FrameSize) != (why != "") && test.configured == 0 {
			t.Errorf("%s: frames of %d bytes, want %d (%q)", test.name, size, test.want, why)
		}
	}
}

// A NIC that comes later than the packet memory with small frames was made runs
// without zero copy.
func TestLateNICHasNoZeroCopyInSmallFrames(t *testing.T) {
	umem := func(frameSize int) *xsk.Umem {
		a, err := xsk.NewUmem(64, frameSize)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { a.Close() })
		return a
	}
	small, large := umem(xsk.SmallFrameSize), umem(xsk.FrameSize)
	o := &opener{warnings: warning.NewList(slog.New(slog.DiscardHandler))}
	for _, test := range []struct {
		memory *xsk.Umem
		mode   string
		want   xsk.Mode
		err    error
	}{
		{small, ModeAuto, xsk.Copy, nil},
		{small, ModeZeroCopy, xsk.ZeroCopy, errFrames},
		{small, ModeNative, xsk.Copy, nil},
		{large, ModeAuto, xsk.Auto, nil},
		{large, ModeZeroCopy, xsk.ZeroCopy, nil},
	} {
		o.memory = test.memory
		got, err := o.socketMode(&port{name: "eth9", mode: test.mode, zeroCopy: true, vlanParent: -1})
		if got != test.want || !errors.Is(err, test.err) {
			t.Errorf("%s in frames of %d bytes: %v, %v", test.mode, test.memory.FrameSize(), got, err)
		}
	}
}
