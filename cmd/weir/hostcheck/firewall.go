package hostcheck

import (
	"fmt"
	"log/slog"
	"net/netip"
	"slices"

	"github.com/weirlb/weir/cmd/weir/config"
	"github.com/weirlb/weir/cmd/weir/firewall"
	"github.com/weirlb/weir/cmd/weir/source"
	"github.com/weirlb/weir/discovery/manifest"
	"github.com/weirlb/weir/lb/header"
	"github.com/weirlb/weir/lb/hostveth"
)

// maxRules is the number of rules that are named.
const maxRules = 50

// CheckFirewall names the rules of the host's firewall that are void for packets to frontends.
func CheckFirewall(cfg *config.Configuration, frontends []firewall.Frontend) []Finding {
	var fs findings
	const subject = "firewall"
	rules := firewall.Read()
	void := rules.Void(frontends)
	for i, line := range void {
		if i == maxRules {
			fs.add(Note, subject, "%d more rules may concern packets to frontends", len(void)-i)
			break
		}
		fs.add(Note, subject, "%s: Weir takes these packets before the rule", line)
		fs.mend("limit the clients by spec.loadBalancerSourceRanges of the Service, or in front of the node")
	}
	for _, line := range rules.PastInput(cfg.AttachedNames()) {
		fs.add(Note, subject, "%s: packets from Weir to programs of the node come by %s, which the rule does not name", line, hostveth.KernelEnd)
		fs.mend("add %s to the rule, or the port to protectedEndpointPorts", hostveth.KernelEnd)
	}
	for _, program := range rules.Enforcers {
		fs.add(Note, subject, "%s enforces policies by chains of its own: NetworkPolicies and policies of the host do not apply to packets "+
			"that clients send to frontends", program)
		fs.mend("limit the clients by spec.loadBalancerSourceRanges of the Service, or in front of the node")
	}
	for _, why := range rules.Unread {
		fs.add(Note, subject, "rules cannot be read: %s", why)
	}
	return fs
}

// Frontends are those of the manifests, and all node ports: Services of an API server are not
// known.
func Frontends(cfg *config.Configuration) []firewall.Frontend {
	attached := cfg.AttachedNames()
	list := []firewall.Frontend{firewall.NodePorts(attached, config.NodePorts.Lo, config.NodePorts.Hi)}
	m := cfg.Discovery.Manifests
	if m == nil || m.Path == "" {
		return list
	}
	src := manifest.New(manifest.Config{
		Path: m.Path, Store: source.Examined(cfg), Log: slog.New(slog.DiscardHandler),
	})
	if _, err := src.Load(); err != nil {
		return list // the path: told by Configuration.CheckHost
	}
	src.Flush()
	for _, svc := range src.Services() {
		for _, p := range svc.Ports {
			protocol, _ := header.ProtocolNumber(p.Protocol)
			for _, a := range slices.Concat(svc.LoadBalancerIPs, svc.ExternalIPs) {
				to := netip.AddrPortFrom(a, p.Port)
				list = append(list, firewall.Frontend{
					Name:   fmt.Sprintf("%s %s of %s", p.Protocol, to, svc.Name),
					Packet: firewall.Packet{Interfaces: attached, Protocol: protocol, To: to},
				})
			}
		}
	}
	return list
}
