package daemon

import "github.com/weirlb/weir/discovery"

// noteWithdrawal logs an Update that takes away more than half of the Services:
// mostly that is a mistake of whoever wrote them. Preconditions: d.mu is held.
func (d *Daemon) noteWithdrawal(up *discovery.Update) {
	before := d.known
	d.known = d.source.Stats().Services
	d.withdrawn.Add(uint64(len(up.Deleted)))
	if n := len(up.Deleted); 2*n > before && n > 0 {
		d.log.Warn("the source withdraws most Services", "withdrawn", n, "of", before, "left", d.known, "source", d.source.String())
	}
}
