package ports

import "log/slog"

// keepPath has packets of a port reach Weir by the veth pair that is Weir's own, and says why
// they do not. Another program may have changed the pair.
func keepPath(p *port, mtu int, log *slog.Logger) (fault string) {
	if p.keep != nil {
		return p.keep()
	}
	if p.pair == nil {
		return ""
	}
	mended, err := p.pair.Keep(mtu)
	switch {
	case err != nil && p.fault == "":
		log.Error("veth pair", "interface", p.name, "err", err)
		fallthrough
	case err != nil:
		return "loses packets: " + err.Error()
	case mended != "":
		log.Warn("veth pair was changed by another program, and is mended", "interface", p.name, "change", mended)
	}
	return ""
}

// faultOf is the fault of a device of a configured interface, "" if there is none.
func faultOf(list []*port, name string) string {
	for _, p := range list {
		if p.parent == name && p.routeIndex != 0 && p.state == open && p.fault != "" {
			return p.fault
		}
	}
	return ""
}
