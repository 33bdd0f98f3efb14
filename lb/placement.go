package lb

import (
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/lb/device"
	"github.com/weirlb/weir/lb/steer"
)

// maxCPUs is the size of unix.CPUSet.
const maxCPUs = 1024

// placeWorkers chooses the CPU of every worker. queues are the receive queues by
// interface.
func placeWorkers(cfg *Config, queues map[string]int) (cpus []int, err error) {
	allowed, err := allowedCPUs()
	if err != nil {
		return nil, err
	}
	for _, c := range cfg.CPUs {
		if !slices.Contains(allowed, c) {
			return nil, fmt.Errorf("workers.cpus: CPU %d may not be used by this process (allowed: %v)",
				c, allowed)
		}
	}

	n := cfg.Workers
	if n == 0 {
		n = automaticWorkers(queues, len(allowed), len(cfg.CPUs))
	}
	if n > steer.MaxQueues {
		return nil, fmt.Errorf("%d workers: at most %d", n, steer.MaxQueues)
	}

	cpus = cfg.CPUs
	if len(cpus) == 0 {
		sys, near := os.DirFS("/sys"), map[int]int{}
		for name, n := range queues {
			near[device.Node(sys, name)] += n
		}
		cpus = device.Place(n, device.CPUs(sys, allowed), device.NearestNode(near))
	}
	if n > len(cpus) {
		return nil, fmt.Errorf("%d workers on %d CPUs: a worker takes a whole CPU; lower workers.count",
			n, len(cpus))
	}
	return cpus[:n], nil
}

// allowedCPUs are the CPUs that this process may use, in order.
func allowedCPUs() (allowed []int, err error) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return nil, fmt.Errorf("ask for the CPUs that may be used: %w", err)
	}
	for c := range maxCPUs {
		if set.IsSet(c) {
			allowed = append(allowed, c)
		}
	}
	return allowed, nil
}

// automaticWorkers is a worker per receive queue, as far as there are CPUs and the
// steering program has room for sockets. configured CPUs, if any, stand for all.
func automaticWorkers(queues map[string]int, cpus, configured int) int {
	n := 0
	for _, q := range queues {
		n = max(n, q)
	}
	if configured > 0 {
		cpus = configured
	}
	return min(n, cpus, steer.MaxQueues)
}
