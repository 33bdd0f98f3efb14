package lb

import (
	"errors"

	"github.com/weirlb/weir/lb/flowcache"
	"github.com/weirlb/weir/lb/hostveth"
	"github.com/weirlb/weir/lb/ports"
	"github.com/weirlb/weir/lb/steer"
	"github.com/weirlb/weir/lb/uppair"
)

// Cleanup removes from the host everything that a killed process has left. It must not be
// called while a load balancer runs.
func Cleanup(cfg Config) error {
	dir := cfg.PinDir
	if dir == "" {
		dir = steer.DefaultPinDir
	}
	return errors.Join(
		flowcache.CleanupStale(dir),
		steer.CleanupStale(dir),
		hostveth.CleanupStale(cfg.StateDir, cfg.ProcSys),
		uppair.Cleanup(),
		ports.RestoreOffloads(cfg.StateDir),
	)
}
