package publisher

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
// Preconditions: p.mu is held.
func (p *Publisher) nodeAddresses() []netip.Addr {
	var out []netip.Addr
	for _, a := range p.nodePortAddresses() {
		out = append(out, a.Address)
	}
	return out
}

// nodePortAddresses are the same, each with the reason. Preconditions: p.mu is
// held.
func (p *Publisher) nodePortAddresses() []api.NodePortAddress {
	var out []api.NodePortAddress
	prefixes, primary := p.cfg.NodePortPrefixes()
	switch {
	case primary:
		for _, a := range p.addresses.Primary(p.node.Addresses) {
			out = append(out, api.NodePortAddress{Address: a.Addr, Reason: p.whyPrimary(a)})
		}
	case len(prefixes) > 0:
		for _, a := range p.addresses.In(prefixes) {
			out = append(out, api.NodePortAddress{Address: a, Reason: "nodePortAddresses"})
		}
	default:
		for _, a := range p.addresses.Addresses() {
			if a.Port >= 0 {
				out = append(out, api.NodePortAddress{Address: a.Prefix.Addr(), Reason: "all addresses of " + a.Name})
			}
		}
	}
	return out
}

// whyPrimary says where a primary address is from, and if it is not of the Node
// object why not.
func (p *Publisher) whyPrimary(a route.PrimaryAddress) string {
	if a.Origin == route.OfNode {
		return "address of Node " + p.node.Name
	}
	text := "first address of the first interface"
	if a.Origin == route.OfDefaultRoute {
		text = "source address of the default route"
	}
	at := slices.IndexFunc(p.node.Addresses, func(n netip.Addr) bool { return n.Is4() == a.Is4() })
	switch {
	case at >= 0:
		return fmt.Sprintf("%s: this host does not hold %s of Node %s", text, p.node.Addresses[at], p.node.Name)
	case len(p.node.Addresses) > 0:
		return fmt.Sprintf("%s: Node %s has no address of this family", text, p.node.Name)
	}
	return fmt.Sprintf("%s: no address of Node %s is known", text, p.node.Name)
}

// updateAddresses translates again the Services that depend on the node's
// addresses. Preconditions: p.mu is held.
func (p *Publisher) updateAddresses() {
	p.logNodePorts()
	if b := p.translate.SetNodeAddresses(p.nodeAddresses()); !b.Empty() {
		p.publish(b, changes.NewCause("the addresses of this node have changed"))
	}
	p.followReach()
	p.checks.SetAddresses(p.checkAddresses())
	p.readinessChanged()
}

// followReach has the source merge what the frontends of this node need now. Preconditions: p.mu
// is held.
func (p *Publisher) followReach() {
	r := translate.Reach{ClusterIPs: p.cfg.ClusterIPs, ExternalIPs: p.cfg.ExternalIPs, LoadBalancerClass: p.cfg.LoadBalancerClass}
	for _, a := range p.nodeAddresses() {
		if a.Is4() {
			r.NodeAddresses4++
		} else {
			r.NodeAddresses6++
		}
	}
	if p.reach.Set(r) {
		p.source.Reconsider()
	}
}

// logNodePorts logs the addresses of node ports when they or the reasons for
// them have changed, once the source has told which Node this is.
// Preconditions: p.mu is held.
func (p *Publisher) logNodePorts() {
	now := p.nodePortAddresses()
	if !p.synced || slices.Equal(now, p.nodePorts) {
		return
	}
	p.nodePorts = now
	if len(now) == 0 {
		p.log.Warn("node ports are served on no address", "nodePortAddresses", p.cfg.NodePortAddresses)
	}
	for _, a := range now {
		p.log.Info("node ports are served", "address", a.Address, "reason", a.Reason)
	}
}

// FollowAddresses follows the addresses of the host.
func (p *Publisher) FollowAddresses(ctx context.Context, changed <-chan struct{}) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		}
		p.mu.Lock()
		p.updateAddresses()
		p.mu.Unlock()
	}
}

// checkAddresses are those on which healthCheckNodePorts are served, nil for
// all of the node. Preconditions: p.mu is held.
func (p *Publisher) checkAddresses() []netip.Addr {
	if len(p.cfg.NodePortAddresses) == 0 {
		return nil
	}
	return append([]netip.Addr{}, p.nodeAddresses()...)
}
