package peer

import (
	"context"

	"github.com/weirlb/weir/perf/testbed"
)

// Kernel is the kernel's plain IPv4 forwarding: no balancing, no translation,
// no connection tracking. It is the least cost of any path through the kernel.
type Kernel struct{}

func (Kernel) Name() string          { return "kernel" }
func (Kernel) Carries(Protocol) bool { return true }
func (Kernel) Available() error      { return nil }

// Start does nothing: the testbed's node forwards.
func (Kernel) Start(context.Context, *testbed.Bed, Config) (Running, error) {
	return forwarding{}, nil
}

type forwarding struct{}

func (forwarding) Direct() bool                        { return true }
func (forwarding) Processes() []int                    { return nil }
func (forwarding) Refused() (map[string]uint64, error) { return nil, nil }
func (forwarding) Details() map[string]float64         { return nil }
func (forwarding) Stop() error                         { return nil }
