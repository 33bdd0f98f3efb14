package lb

import (
	"errors"

	"github.com/weirlb/weir/lb/ports"
	"github.com/weirlb/weir/lb/steer"
)

// Cleanup takes off the host what a process that was killed has left. It must
// not be called while a load balancer runs.
func Cleanup(cfg Config) error {
	dir := cfg.PinDir
	if dir == "" {
		dir = steer.DefaultPinDir
	}
	return errors.Join(steer.CleanupStale(dir), cleanupHostVeth(cfg), ports.RestoreOffloads(cfg.StateDir))
}
