package ports

import (
	"net"

	"github.com/vishvananda/netlink"
)

// isDown reports whether an interface is down or has no carrier, if its driver says so.
func isDown(a *netlink.LinkAttrs) bool {
	switch a.OperState {
	case netlink.OperDown, netlink.OperLowerLayerDown, netlink.OperNotPresent:
		return true
	}
	return a.Flags&net.FlagUp == 0
}

// followMTU takes over the MTU of a port's interface. Routes and next hops follow by
// themselves.
func (ps *Ports) followMTU(p *port, mtu int) {
	if p.pair != nil { // also without a change: the last call may have failed
		if err := p.pair.Widen(mtu); err != nil {
			ps.log.Error("follow the MTU", "interface", p.name, "err", err)
		}
	}
	if mtu == p.mtu || mtu <= 0 {
		return
	}
	ps.log.Info("interface has another MTU", "interface", p.name, "mtu", mtu, "before", p.mtu)
	p.mtu = mtu
	ps.warnMTU(p)
}
