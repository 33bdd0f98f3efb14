package daemon

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/cmd/weir/changes"
	"github.com/weirlb/weir/cmd/weir/translate"
	"github.com/weirlb/weir/lb/route"
)

// nodeAddresses are the addresses on which node ports are served.
// Preconditions: d.mu is held.
func (d *Daemon) nodeAddresses() []netip.Addr {
	var out []netip.Addr
	for _, a := range d.nodePortAddresses() {
		out = append(out, a.Address)
	}
	return out
}

// nodePortAddresses are the same, each with the reason. Preconditions: d.mu is
// held.
func (d *Daemon) nodePortAddresses() []api.NodePortAddress {
	var out []api.NodePortAddress
	prefixes, primary := d.cfg.NodePortPrefixes()
	switch {
	case primary:
		for _, a := range d.lb.Router().Primary(d.node.Addresses) {
			out = append(out, api.NodePortAddress{Address: a.Addr, Reason: d.whyPrimary(a)})
		}
	case len(prefixes) > 0:
		for _, a := range d.lb.Router().In(prefixes) {
			out = append(out, api.NodePortAddress{Address: a, Reason: "nodePortAddresses"})
		}
	default:
		for _, a := range d.lb.Router().Addresses() {
			if a.Port >= 0 {
				out = append(out, api.NodePortAddress{Address: a.Prefix.Addr(), Reason: "all addresses of " + a.Name})
			}
		}
	}
	return out
}

// whyPrimary says where a primary address is from, and if it is not of the Node
// object why not.
func (d *Daemon) whyPrimary(a route.PrimaryAddress) string {
	if a.Origin == route.OfNode {
		return "address of Node " + d.node.Name
	}
	text := "first address of the first interface"
	if a.Origin == route.OfDefaultRoute {
		text = "source address of the default route"
	}
	at := slices.IndexFunc(d.node.Addresses, func(n netip.Addr) bool { return n.Is4() == a.Is4() })
	switch {
	case at >= 0:
		return fmt.Sprintf("%s: this host does not hold %s of Node %s", text, d.node.Addresses[at], d.node.Name)
	case len(d.node.Addresses) > 0:
		return fmt.Sprintf("%s: Node %s has no address of this family", text, d.node.Name)
	}
	return fmt.Sprintf("%s: no address of Node %s is known", text, d.node.Name)
}

// updateAddresses translates again the Services that depend on the node's
// addresses. Preconditions: d.mu is held.
func (d *Daemon) updateAddresses() {
	d.logNodePorts()
	if b := d.translate.SetNodeAddresses(d.nodeAddresses()); !b.Empty() {
		d.publish(b, changes.NewCause("the addresses of this node have changed"))
	}
	d.followReach()
	d.checks.SetAddresses(d.checkAddresses())
	readinessChanged(d)
}

// followReach has the source merge what the frontends of this node need now. Preconditions: d.mu
// is held.
func (d *Daemon) followReach() {
	r := translate.Reach{ClusterIPs: d.cfg.ClusterIPs, ExternalIPs: d.cfg.ExternalIPs, LoadBalancerClass: d.cfg.LoadBalancerClass}
	for _, a := range d.nodeAddresses() {
		if a.Is4() {
			r.NodeAddresses4++
		} else {
			r.NodeAddresses6++
		}
	}
	if d.reach.Set(r) {
		d.source.Reconsider()
	}
}

// logNodePorts logs the addresses of node ports when they or the reasons for
// them have changed, once the source has told which Node this is.
// Preconditions: d.mu is held.
func (d *Daemon) logNodePorts() {
	now := d.nodePortAddresses()
	if !d.synced || slices.Equal(now, d.nodePorts) {
		return
	}
	d.nodePorts = now
	if len(now) == 0 {
		d.log.Warn("node ports are served on no address", "nodePortAddresses", d.cfg.NodePortAddresses)
	}
	for _, a := range now {
		d.log.Info("node ports are served", "address", a.Address, "reason", a.Reason)
	}
}

// followAddresses follows the addresses of the host.
func (d *Daemon) followAddresses(ctx context.Context, changed <-chan struct{}) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		}
		d.mu.Lock()
		d.updateAddresses()
		d.mu.Unlock()
	}
}
