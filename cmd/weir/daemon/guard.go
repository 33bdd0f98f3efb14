package daemon

import (
	"net/netip"

	"github.com/weirlb/weir/cmd/weir/translate"
)

// unusedBy reports of an endpoint that the operator drains it, or that the node refuses it: so
// health checks of Services answer. Preconditions: d.mu is held.
func unusedBy(d *Daemon) func(netip.AddrPort) bool {
	drained, guard := translate.NewDrainedSet(drainedOf(d.drained)), translate.GuardOf(d.cfg, d.lb.Router().Local)
	return func(a netip.AddrPort) bool { return drained.Has(a) || guard.Refuses(a) != "" }
}
