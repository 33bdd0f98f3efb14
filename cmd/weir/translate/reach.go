package translate

import (
	"sync/atomic"

	"github.com/weirlb/weir/discovery"
)

// HasFrontend reports whether nodes serve any frontend of svc: a Service with cluster IPs
// alone has a frontend only where these are served. Fields count as they
// are given, whether or not the Service can be served as it is.
func HasFrontend(svc *discovery.Service, clusterIPs bool) bool {
	if svc.Headless || svc.ExternalName {
		return false
	}
	return hasNodePort(svc) || len(svc.LoadBalancerIPs)+len(svc.ExternalIPs) > 0 || clusterIPs && len(svc.ClusterIPs) > 0
}

// Reach is which kinds of frontends a node has. The zero value has node ports, on an address, and
// all load balancer addresses.
type Reach struct {
	ClusterIPs, ExternalIPs bool
	LoadBalancerClass       string
	// NodeAddresses4 and 6 are the numbers of addresses on which node ports are taken. None of the
	// families of a Service counts as one: an address may come.
	NodeAddresses4, NodeAddresses6 int
}

// Use is what a node with this reach makes of a Service: the frontends as Apply would make them,
// but for protected ports. A healthCheckNodePort needs the endpoints too.
func (r *Reach) Use(svc *discovery.Service) discovery.Use {
	addresses := 0
	if r.LoadBalancerClass == "" || r.LoadBalancerClass == svc.LoadBalancerClass {
		addresses += len(svc.LoadBalancerIPs)
	}
	if r.ExternalIPs {
		addresses += len(svc.ExternalIPs)
	}
	if r.ClusterIPs {
		addresses += len(svc.ClusterIPs)
	}
	n, nodeAddresses := addresses*len(svc.Ports), r.nodeAddresses(svc.Families)
	for i := range svc.Ports {
		if svc.Ports[i].NodePort != 0 {
			n += nodeAddresses
		}
	}
	return discovery.Use{Endpoints: n > 0 || svc.HealthCheckNodePort != 0, Frontends: n}
}

// nodeAddresses is the number of addresses of node ports of a Service. One without families has
// those of its endpoints, which are not known yet.
func (r *Reach) nodeAddresses(f discovery.Families) (n int) {
	if f != discovery.IPv6 {
		n = r.NodeAddresses4
	}
	if f != discovery.IPv4 {
		n += r.NodeAddresses6
	}
	return max(1, n)
}

// SharedReach is a Reach that a source reads while it changes.
type SharedReach struct{ p atomic.Pointer[Reach] }

// Set replaces the Reach, and reports whether it differs.
func (s *SharedReach) Set(r Reach) bool {
	last := s.p.Swap(&r)
	return last == nil || *last != r
}

// Use is Reach.Use.
func (s *SharedReach) Use(svc *discovery.Service) discovery.Use { return s.p.Load().Use(svc) }
