package translate

import "github.com/weirlb/weir/discovery"

// HasFrontend reports whether nodes serve any frontend of svc: a Service with cluster IPs
// alone has a frontend only where these are served. Fields count as they
// are given, whether or not the Service can be served as it is.
func HasFrontend(svc *discovery.Service, clusterIPs bool) bool {
	if svc.Headless || svc.ExternalName {
		return false
	}
	return hasNodePort(svc) || len(svc.LoadBalancerIPs)+len(svc.ExternalIPs) > 0 || clusterIPs && len(svc.ClusterIPs) > 0
}
