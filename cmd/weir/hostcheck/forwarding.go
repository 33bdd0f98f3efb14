package hostcheck

import "github.com/weirlb/weir/cmd/weir/config"

// needs has the requirements of a forwarding mode beyond this machine.
var needs = map[string]string{
	config.ForwardL2DSR: "endpoints must be on a network of an attached interface, have the load balancer addresses on their loopback without answering ARP for them (net.ipv4.conf.all.arp_ignore=1, arp_announce=2), and listen on the Service's own port",
	config.ForwardIPIP:  "endpoints must take IP in IP (protocols 4 and 41; `weir decap` does), have the load balancer addresses on their loopback, and listen on the Service's own port",
	config.ForwardGUE:   "endpoints must take GUE on UDP port 6080 (`weir decap` does), have the load balancer addresses on their loopback, and listen on the Service's own port",
}

// checkForwarding states the default mode's requirements of the endpoints, which cannot be
// checked here.
func checkForwarding(fs *findings, cfg *config.Configuration) {
	if text := needs[cfg.Forwarding.Mode]; text != "" {
		fs.add(Note, "forwarding mode "+cfg.Forwarding.Mode, "%s; node ports, cluster IPs and endpoints on this node are served by nat", text)
	}
}
