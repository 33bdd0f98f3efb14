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
		queues := map[string]int{"eth0": 1, "eth1": test.queues}
		if got := automaticWorkers(queues, test.cpus, test.configured); got != test.want {
			t.Errorf("%+v: got %d", test, got)
		}
	}
}
