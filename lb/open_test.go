package lb

import (
	"testing"

	"github.com/weirlb/weir/lb/steer"
	"github.com/weirlb/weir/lb/xsk"
)

// A machine with more queues and CPUs than the steering program has room for
// starts: the other queues' packets are the kernel's, of which it is warned.
func TestAsManyWorkersAsThereIsRoomFor(t *testing.T) {
	for _, test := range []struct{ queues, cpus, configured, want int }{
		{queues: 4, cpus: 8, want: 4},
		{queues: 16, cpus: 8, want: 8},
		{queues: 16, cpus: 8, configured: 2, want: 2},
		{queues: 128, cpus: 128, want: steer.MaxQueues},
		{queues: 128, cpus: 128, configured: 100, want: steer.MaxQueues},
	} {
		l := &LB{cfg: Config{CPUs: make([]int, test.configured)}, ifaces: []*iface{{queues: 1, under: -1}, {queues: test.queues, under: -1}}}
		if got := l.automaticWorkers(test.cpus); got != test.want {
			t.Errorf("%+v: got %d", test, got)
		}
	}
}

// VLANs send by the queues of their device: they take no part of the frames from
// it.
func TestVLANsTakeNoFrames(t *testing.T) {
	l := &LB{ifaces: []*iface{{under: -1}}}
	for range 30 {
		l.ifaces = append(l.ifaces, &iface{under: 0})
	}
	l.ifaces = append(l.ifaces, &iface{under: -1, host: true})
	if n := l.devices(); n != 2 {
		t.Fatalf("%d devices, want 2", n)
	}
}

// Frames are small as long as every interface's packets, tags included, fit.
func TestFramesAreAsLargeAsTheLargestMTUNeeds(t *testing.T) {
	for _, test := range []struct{ mtu, want int }{
		{1500, xsk.SmallFrameSize}, {1536, xsk.SmallFrameSize}, {1537, xsk.FrameSize}, {9000, xsk.FrameSize},
	} {
		l := &LB{ifaces: []*iface{{mtu: 1500}, {mtu: test.mtu}}}
		got, _ := l.frameSize()
		if got != test.want {
			t.Errorf("MTU %d: frames of %d bytes, want %d", test.mtu, got, test.want)
		}
		const ethernet, twoTags = 14, 8
		if whole := xsk.Headroom + ethernet + twoTags + test.mtu; test.mtu < 9000 && whole > got {
			t.Errorf("MTU %d: a packet ends at byte %d of a frame of %d", test.mtu, whole, got)
		}
	}
}
