package config

import (
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
)

// NodePorts is the range from which clusters take node ports by default
// (kube-apiserver --service-node-port-range).
var NodePorts = PortRange{30000, 32767}

// Bounds of the values of a configuration.
const (
	mostMetricsServices = 10000
	MinFlows            = 1024
	MaxFlows            = 1 << 30 // an entry's number, twice a connection's, is 32 bits
	MaxWorkers          = 64      // queues of an interface that can have a socket
	maxSeconds          = 7 * 24 * 3600
	// maxSocketPath is sockaddr_un's sun_path without the final NUL.
	maxSocketPath = 107
	// maxInterfaceName is IFNAMSIZ without the final NUL.
	maxInterfaceName = 15
)

// ForwardingModes are the values of forwarding.mode, and AttachModes those of
// interfaces[].mode. Help and documents are held to them.
var (
	ForwardingModes = []string{ForwardNAT, ForwardDNAT, ForwardL2DSR, ForwardIPIP, ForwardGUE}
	AttachModes     = []string{ModeAuto, ModeZeroCopy, ModeNative, ModeGeneric}

	reversePathFilters = []string{ReversePathAuto, ReversePathStrict, ReversePathLoose, ReversePathOff}

	txChecksums = []string{TxChecksumAuto, TxChecksumMetadata, TxChecksumSoftware}
)

// Validate judges the configuration by itself, without looking at the
// machine, and returns all that is wrong.
func (c *Configuration) Validate() Errors {
	r := report{origin: c.origin}
	if c.APIVersion != APIVersion {
		r.addf("apiVersion", "must be %s, is %q", APIVersion, c.APIVersion)
	}
	if c.Kind != Kind {
		r.addf("kind", "must be %s, is %q", Kind, c.Kind)
	}
	validateNodeName(c, &r)
	validateDiscovery(c, &r)
	validateSelection(c, &r)
	validateInterfaces(c, &r)
	validateNodePortAddresses(c, &r)
	validateSNAT(c, &r)
	validateForwarding(c, &r)
	validateHostVeth(c, &r)
	validateProtectedPorts(c, &r)
	validateConntrack(c, &r)
	validateDenyLists(c, &r)
	validateFlood(c, &r)
	validateHealthChecks(c, &r)
	validateLimits(c, &r)
	validateDrain(c, &r)
	validateDeath(c, &r)
	validateWorkers(c, &r)
	validateAnnounce(c, &r)
	validateFlowCache(c, &r)
	validateFlowLog(c, &r)
	validatePacketMemory(c, &r)
	validateServers(c, &r)
	validateAdmin(c, &r)
	validateLogging(c, &r)
	return r.errs
}

// dns1123 is a DNS subdomain (RFC 1123), which a Node's name must be.
var dns1123 = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`)

func validateNodeName(c *Configuration, r *report) {
	switch {
	case c.NodeName == "":
		r.addf("nodeName", "must be given (or --node-name, or NODE_NAME in the environment)")
	case len(c.NodeName) > 253 || !dns1123.MatchString(c.NodeName):
		r.addf("nodeName", "%q is not a node's name: lower case letters, digits, - and . (RFC 1123)", c.NodeName)
	}
}

func validateDiscovery(c *Configuration, r *report) {
	m, k := c.Discovery.Manifests, c.Discovery.Kubernetes
	switch {
	case m == nil && k == nil:
		r.addf("discovery", "must have manifests or kubernetes (or --manifests, --kubeconfig): there is nothing to learn Services from")
	case m != nil && k != nil:
		r.addf("discovery", "has both manifests and kubernetes: give one")
	}
	if m != nil && m.Path == "" {
		r.addf("discovery.manifests.path", "must be given: a file or a directory")
	}
	if k != nil {
		k.validate(r)
	}
	if n := c.Discovery.Names; n != nil && n.Resolver != "" {
		if _, ok := n.Server(); !ok {
			r.addf("discovery.names.resolver", "%q is not an IP address, or IP address and port, as 192.0.2.53 or [2001:db8::53]:53", n.Resolver)
		}
	}
}

// Server is the resolver with its port, invalid if there is none.
func (n *Names) Server() (netip.AddrPort, bool) {
	a, err := netip.ParseAddrPort(n.Resolver)
	if err != nil {
		ip, bad := netip.ParseAddr(n.Resolver)
		a, err = netip.AddrPortFrom(ip, 53), bad
	}
	return a, err == nil && !a.Addr().IsUnspecified() && a.Port() != 0
}

// validateSelection checks the fields that must be the value of a label and the name of a
// class.
func validateSelection(c *Configuration, r *report) {
	for _, msg := range validation.IsValidLabelValue(c.ServiceProxyName) {
		r.addf("serviceProxyName", "%q: %s", c.ServiceProxyName, msg)
	}
	if c.LoadBalancerClass == "" {
		return
	}
	for _, msg := range validation.IsQualifiedName(c.LoadBalancerClass) {
		r.addf("loadBalancerClass", "%q: %s", c.LoadBalancerClass, msg)
	}
}

func validateNodePortAddresses(c *Configuration, r *report) {
	for i, s := range c.NodePortAddresses {
		path := fmt.Sprintf("nodePortAddresses[%d]", i)
		if s == Primary {
			if len(c.NodePortAddresses) > 1 {
				r.addf(path, "%q stands alone or not at all", Primary)
			}
			continue
		}
		checkPrefix(r, path, s)
	}
}

func validateSNAT(c *Configuration, r *report) {
	seen := map[netip.Addr]bool{}
	for i, s := range c.SNAT.Addresses {
		path := fmt.Sprintf("snat.addresses[%d]", i)
		a, err := netip.ParseAddr(s)
		switch {
		case err != nil:
			r.addf(path, "%q is not an IP address", s)
		case a.Zone() != "" || a.Is4In6():
			r.addf(path, "%s: write it without a zone and not mapped into IPv6", s)
		case !a.IsGlobalUnicast():
			r.addf(path, "%s cannot be the source of a connection that an endpoint answers", s)
		case seen[a]:
			r.addf(path, "%s is listed twice", s)
		}
		seen[a] = true
	}
	ports := c.SNAT.Range()
	if ports.Overlaps(NodePorts) {
		r.addf("snat.ports", "%s overlaps the node ports %s: answers to Weir and connections to node ports could not be told apart", ports, NodePorts)
	}
	if ports.Lo < 1024 {
		r.addf("snat.ports", "%s begins among the well-known ports: take 1024 or above", ports)
	}
	for i, p := range c.ProtectedPorts {
		if ports.Contains(p) {
			r.addf(fmt.Sprintf("protectedPorts[%d]", i), "%d lies in snat.ports %s, which Weir takes on the node's addresses", p, ports)
		}
	}
}

func validateForwarding(c *Configuration, r *report) {
	switch m := c.Forwarding.Mode; {
	case m == ForwardDNAT && c.HostVeth.Mark == 0:
		r.addf("forwarding.mode", "%s needs hostVeth.mark", m)
	case slices.Contains(ForwardingModes, m):
	default:
		r.addf("forwarding.mode", "must be %s, is %q", strings.Join(ForwardingModes, ", "), m)
	}
	if n := c.Forwarding.MinPathMTU; n < 68 || n > 1500 {
		r.addf("forwarding.minPathMTU", "must be 68 to 1500 (68 bytes are the least that IPv4 has, RFC 791), is %d", n)
	}
	if f := c.Forwarding.ReversePathFilter; !slices.Contains(reversePathFilters, f) {
		r.addf("forwarding.reversePathFilter", "must be %s, is %q", either(reversePathFilters), f)
	}
}

// checkPrefix reports s unless it is a prefix without bits set beyond the length.
func checkPrefix(r *report, path, s string) (netip.Prefix, bool) {
	p, err := netip.ParsePrefix(s)
	switch {
	case err != nil:
		r.addf(path, "%q is not a prefix such as 192.0.2.0/24", s)
	case p.Addr().Is4In6():
		r.addf(path, "%s: write it as an IPv4 prefix", s)
	case p != p.Masked():
		r.addf(path, "%s has bits set beyond its length: %s is meant?", s, p.Masked())
	default:
		return p, true
	}
	return netip.Prefix{}, false
}

func validateProtectedPorts(c *Configuration, r *report) {
	validatePorts(r, "protectedPorts", c.ProtectedPorts)
	validatePorts(r, "protectedEndpointPorts", c.ProtectedEndpointPorts)
}

func validatePorts(r *report, field string, ports []uint16) {
	seen := map[uint16]bool{}
	for i, p := range ports {
		path := fmt.Sprintf("%s[%d]", field, i)
		switch {
		case p == 0:
			r.addf(path, "must be a port (1-65535)")
		case seen[p]:
			r.addf(path, "%d is listed twice", p)
		}
		seen[p] = true
	}
}

func validateConntrack(c *Configuration, r *report) {
	ct := c.Conntrack
	if n := int64(ct.MaxFlows); n != 0 && (n < MinFlows || n > MaxFlows) {
		r.addf("conntrack.maxFlows", "must be auto or %d to %d, is %d", MinFlows, MaxFlows, n)
	}
	if ct.Path != "" && !filepath.IsAbs(ct.Path) {
		r.addf("conntrack.path", "%q must be an absolute path, or empty for no file", ct.Path)
	}
	if n := ct.TakeoverSeconds; n < 0 || n > maxSeconds {
		r.addf("conntrack.takeoverSeconds", "must be 0 to %d, is %d", maxSeconds, n)
	}
	if n := ct.EndpointRemovalGraceSeconds; n < 0 || n > maxSeconds {
		r.addf("conntrack.endpointRemovalGraceSeconds", "must be 0 to %d, is %d", maxSeconds, n)
	}
}

func validateDrain(c *Configuration, r *report) {
	if n := c.Drain.NotReadySeconds; n < 0 || n > maxSeconds {
		r.addf("drain.notReadySeconds", "must be 0 to %d, is %d", maxSeconds, n)
	}
	if n := c.Drain.TimeoutSeconds; n < 0 || n > maxSeconds {
		r.addf("drain.timeoutSeconds", "must be 0 to %d, is %d", maxSeconds, n)
	}
}

func validateDeath(c *Configuration, r *report) {
	if !slices.Contains(StopMeanings, c.OnStop) {
		r.addf("onStop", "must be %s, is %q", either(StopMeanings), c.OnStop)
	}
	if c.OnStop == StopLeave && c.Death.HoldSeconds == 0 {
		r.addf("onStop", "leave needs death.holdSeconds above 0: without a hold the kernel resets the connections")
	}
	if n := c.Death.HoldSeconds; n < 0 || n > maxSeconds {
		r.addf("death.holdSeconds", "must be 0 to %d, is %d", maxSeconds, n)
	}
}

func validateWorkers(c *Configuration, r *report) {
	w := c.Workers
	if w.Count > MaxWorkers {
		r.addf("workers.count", "must be auto or 1 to %d, is %d", MaxWorkers, w.Count)
	}
	if s := w.StallSeconds; s != 0 && (s < 6 || s > 3600) {
		r.addf("workers.stallSeconds", "must be 0 (off) or 6 to 3600, is %d", s)
	}
	if !w.Count.IsAuto() && !w.CPUs.IsAuto() && int(w.Count) > len(w.CPUs) {
		r.addf("workers.cpus", "%s are %d CPUs for %d workers: a worker needs one of its own", w.CPUs, len(w.CPUs), w.Count)
	}
}

func validatePacketMemory(c *Configuration, r *report) {
	switch n := c.PacketMemory.FrameSize; n {
	case 0, 2048, 4096:
	default:
		r.addf("packetMemory.frameSize", "must be auto, 2048 or 4096, is %d", n)
	}
}

func validateServers(c *Configuration, r *report) {
	switch s := c.Admin.Socket; {
	case !filepath.IsAbs(s):
		r.addf("admin.socket", "%q must be an absolute path", s)
	case len(s) > maxSocketPath:
		r.addf("admin.socket", "is %d bytes long: a UNIX socket's path has at most %d", len(s), maxSocketPath)
	}
	if c.Admin.Socket != "" && c.Admin.Socket == c.Conntrack.Path {
		r.addf("conntrack.path", "is the same file as admin.socket")
	}
	if c.StateDir != "" && !filepath.IsAbs(c.StateDir) {
		r.addf("stateDir", "%q must be an absolute path, or empty", c.StateDir)
	}
	m := checkBindAddress(c, r, "metricsBindAddress", c.MetricsBindAddress)
	if c.MetricsServices < 0 || c.MetricsServices > mostMetricsServices {
		r.addf("metricsServices", "must be from 0 to %d, is %d", mostMetricsServices, c.MetricsServices)
	}
	h := checkBindAddress(c, r, "healthzBindAddress", c.HealthzBindAddress)
	if collide(m, h) {
		r.addf("healthzBindAddress", "%s collides with metricsBindAddress %s", h, m)
	}
	validateStatusPage(c, r, m, h)
	if c.EnableProfiling && c.MetricsBindAddress == "" {
		r.addf("enableProfiling", "needs metricsBindAddress, where it is served")
	}
	if c.EnableProfiling && m.IsValid() && !m.Addr().Unmap().IsLoopback() {
		r.addf("enableProfiling", "needs metricsBindAddress on a loopback address, not %s: profiles take CPU time from the workers and show memory to whoever asks", m)
	}
}

// checkBindAddress parses IP:PORT. Empty means that nothing is served.
func checkBindAddress(c *Configuration, r *report, path, s string) netip.AddrPort {
	if s == "" {
		return netip.AddrPort{}
	}
	a, err := netip.ParseAddrPort(s)
	if err != nil {
		hint := ""
		if host, _, err := net.SplitHostPort(s); err == nil && host == "" {
			hint = fmt.Sprintf(" (did you mean 0.0.0.0%s?)", s)
		}
		r.addf(path, "%q is not an address and port such as 127.0.0.1:9464%s", s, hint)
		return netip.AddrPort{}
	}
	if a.Port() == 0 {
		r.addf(path, "%s: the port must not be 0, so that it can be found", s)
	}
	// Weir takes the packets to this range on the node's addresses, so a listener in it
	// would never be reached.
	if !a.Addr().IsLoopback() && c.SNAT.Range().Contains(a.Port()) {
		r.addf(path, "port %d lies in snat.ports %s, which Weir takes on the node's addresses", a.Port(), c.SNAT.Range())
	}
	return a
}

// either lists values as "a, b or c".
func either(values []string) string {
	last := len(values) - 1
	return strings.Join(values[:last], ", ") + " or " + values[last]
}
