package lb

import (
	"errors"

	"github.com/weirlb/weir/lb/flowcache"
	"github.com/weirlb/weir/lb/hostveth"
	"github.com/weirlb/weir/lb/ports"
	"github.com/weirlb/weir/lb/steer"
	"github.com/weirlb/weir/lb/uppair"
)

// Cleanup removes everything that a killed process has left in the network namespace. It fails, and
// removes nothing, while a load balancer runs there. others are removals of the caller.
func Cleanup(cfg Config, others ...func() error) error {
	claim, err := newClaim()
	if err != nil {
		return err
	}
	dir := cfg.PinDir
	if dir == "" {
		dir = steer.DefaultPinDir
	}
	var errs []error
	for _, remove := range others {
		errs = append(errs, remove())
	}
	return errors.Join(append(errs,
		steer.CleanupStale(dir),
		flowcache.CleanupStale(dir), // after the links of namespaces that are gone
		hostveth.CleanupStale(cfg.StateDir, cfg.ProcSys),
		uppair.Cleanup(),
		ports.RestoreOffloads(cfg.StateDir),
		claim.Close(), // last: no process may start meanwhile
	)...)
}
