package packet

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/weirlb/weir/perf/netlab"
)

// The reverse path filter (RFC 3704): the client's link brings packets with sources
// that are behind other links of the edge.
func init() {
	definitions["insiders-only"] = definition{edit: func(s *corev1.Service) {
		for _, network := range []uint8{netlab.FabricNet, netlab.PodNet} {
			s.Spec.LoadBalancerSourceRanges = append(s.Spec.LoadBalancerSourceRanges,
				netlab.Host4(network, 0).String()+"/24", netlab.Host6(network, 0).String()+"/64")
		}
	}}
	setUps["strict"] = setUp{conntrack: "takeoverSeconds: 0", extra: "forwarding: {reversePathFilter: strict}"}
	setUps["no-filter"] = setUp{conntrack: "takeoverSeconds: 0", extra: "forwarding: {reversePathFilter: off}"}

	dropped, filtered := drop("reverse-path"), func(network uint8) func(*scene) {
		return func(s *scene) { s.send(s.ofNetwork(network)) }
	}
	add(
		scenario{row: "reverse-path", name: "from-a-pod", modes: every, run: filtered(netlab.PodNet), drops: dropped},
		scenario{row: "reverse-path", name: "from-a-pod-in-the-ranges", modes: every, service: "insiders-only", run: filtered(netlab.PodNet), drops: dropped},
		scenario{row: "reverse-path", name: "from-another-link-in-the-ranges", modes: every, service: "insiders-only", run: filtered(netlab.FabricNet), drops: dropped},
		scenario{row: "reverse-path", name: "tcp-from-a-pod", modes: every, run: func(s *scene) {
			p := s.tcp(syn, 1000, 0, "")
			p.src = s.ofNetwork(netlab.PodNet).src
			s.send(p)
		}, drops: dropped},
		scenario{row: "reverse-path", name: "from-another-link", modes: every, run: func(s *scene) { s.passes(s.ofNetwork(netlab.FabricNet)) }},
		scenario{row: "reverse-path", name: "from-another-link-strict", lab: "strict", modes: natModes, run: filtered(netlab.FabricNet), drops: dropped},
		scenario{row: "reverse-path", name: "by-the-default-route-strict", lab: "strict", modes: natModes, run: func(s *scene) { s.passes(s.udp("as routed")) }},
		scenario{row: "reverse-path", name: "from-a-pod-unfiltered", lab: "no-filter", modes: natModes, run: func(s *scene) { s.passes(s.ofNetwork(netlab.PodNet)) }},
	)
}

// ofNetwork is a datagram on the client's link whose source is of another network.
func (s *scene) ofNetwork(network uint8) packet {
	const nobody = 50
	return s.claiming(netlab.Host4(network, nobody).String(), netlab.Host6(network, nobody).String())
}
