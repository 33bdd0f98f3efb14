package lb

import (
	"testing"

	"github.com/weirlb/weir/lb/steer"
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
	if n := sendShare(l.devices()); n < 2*txQueueLen {
		t.Errorf("a port may have %d frames on the way out, not even two rounds", n)
	}
}
