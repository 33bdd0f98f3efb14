package daemon

import "github.com/weirlb/weir/cmd/weir/translate"

// guardOf keeps endpoints from leading to the node itself. Preconditions: d.mu is not held.
func guardOf(d *Daemon) translate.Guard {
	d.mu.Lock()
	defer d.mu.Unlock()
	return translate.GuardOf(d.cfg, d.lb.Router().Local)
}
