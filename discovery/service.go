package discovery

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	utilnet "k8s.io/utils/net"
)

// spec is a Service document, read. It is not changed once made.
type spec struct {
	svc      Service // without endpoints; Errors are the document's own
	selector bool
	// distribution is spec.trafficDistribution, "" for none.
	distribution string
	valid        bool // the API server would take it
	annotations  annotationOptions
}

// equal reports whether two documents say the same.
func (a *spec) equal(b *spec) bool {
	return a != nil && b != nil && a.selector == b.selector && a.distribution == b.distribution && a.svc.equal(&b.svc) && a.annotations.weights.equal(&b.annotations.weights)
}

// parser gathers the contents of a Service document.
type parser struct {
	obj *corev1.Service
	out *Service
	// errors are those for which the API server would refuse the document, soft errors the
	// parts that are skipped while the rest is served.
	errors, soft []string
	// unsupported is the first field not honoured; see Service.Unsupported.
	unsupported string
	supported   Feature
	complete    bool // nothing else will be said of the Service, see Options.Complete
}

// parseService reads a document. good is the last version of the Service
// without errors, nil if there was none: it is carried on where the document
// is invalid, as the API server would.
func parseService(obj *corev1.Service, good *spec, opts *Options) *spec {
	sp := &spec{selector: len(obj.Spec.Selector) > 0}
	p := parser{obj: obj, out: &sp.svc, supported: opts.Supported, complete: opts.Complete}
	p.basics()
	p.ports()
	p.addresses()
	if len(p.out.LoadBalancerIPs)+len(p.out.ExternalIPs) > 0 {
		p.out.Labels = maps.Clone(obj.Labels)
	}
	p.policies()
	p.terms()
	p.affinity()
	p.sourceRanges()
	p.nodePortFaults()
	if d := obj.Spec.TrafficDistribution; d != nil {
		sp.distribution = strings.Clone(*d)
	}
	if len(p.errors) > 0 && good != nil {
		last := *good
		last.svc.Errors, last.svc.Created, last.valid = p.errors, sp.svc.Created, false
		return &last
	}
	sp.annotations = parseAnnotations(obj.Annotations, sp.svc.Policy.ExternalLocal, sp.svc.Ports, obj.Spec.Ports)
	if w := sp.annotations; len(w.errors) > 0 && good != nil {
		sp.annotations = good.annotations
		sp.annotations.checkKeys(sp.svc.Policy.ExternalLocal)
		sp.annotations.errors = w.errors
	}
	p.out.Warnings = append(p.out.Warnings, sp.annotations.warnings...)
	if sp.annotations.opts.PortRange.Last != 0 && obj.Spec.Type != corev1.ServiceTypeLoadBalancer {
		p.out.Warnings = append(p.out.Warnings, fmt.Sprintf("%s: is for the addresses of spec.type LoadBalancer, and has no effect with %s", annotationPath(AnnotationPortRange), cmp.Or(obj.Spec.Type, corev1.ServiceTypeClusterIP)))
	}
	p.setAnnotations(&sp.annotations)
	sp.svc.Unsupported = p.unsupported
	sp.valid = len(p.errors)+len(sp.annotations.errors) == 0
	sp.svc.Errors = slices.Concat(p.errors, sp.annotations.errors, p.soft)
	return sp
}

func (p *parser) fail(text string) { p.errors = append(p.errors, text) }

// setUnsupported names a field that keeps the Service with the kernel; the first wins.
func (p *parser) setUnsupported(field string) { p.unsupported = cmp.Or(p.unsupported, field) }

func (p *parser) basics() {
	obj, out := p.obj, p.out
	out.Name = ServiceName{strings.Clone(obj.Namespace), strings.Clone(obj.Name)}
	out.ExternalName = obj.Spec.Type == corev1.ServiceTypeExternalName
	if !obj.CreationTimestamp.IsZero() {
		out.Created = obj.CreationTimestamp.Unix()
	}
	out.Headless = !out.ExternalName && (obj.Spec.ClusterIP == corev1.ClusterIPNone ||
		slices.Contains(obj.Spec.ClusterIPs, corev1.ClusterIPNone))
	if c := obj.Spec.LoadBalancerClass; c != nil {
		out.LoadBalancerClass = *c
	}
	switch obj.Spec.Type {
	case "", corev1.ServiceTypeClusterIP, corev1.ServiceTypeNodePort,
		corev1.ServiceTypeLoadBalancer, corev1.ServiceTypeExternalName:
	default:
		p.fail(notSupported("spec.type", string(obj.Spec.Type), `"ClusterIP", "ExternalName", "LoadBalancer", "NodePort"`))
		p.setUnsupported("spec.type")
	}
}

// ports takes the valid ports; those of an ExternalName Service mean nothing.
func (p *parser) ports() {
	ports := p.obj.Spec.Ports
	if p.out.ExternalName {
		return
	}
	type number struct {
		protocol string
		port     int32
	}
	names, numbers, nodePorts := map[string]bool{}, map[number]bool{}, map[number]bool{}
	for i := range ports {
		sp := &ports[i]
		at := index("spec.ports", i)
		out := Port{Name: sp.Name, Protocol: string(cmp.Or(sp.Protocol, corev1.ProtocolTCP))}
		faults := len(p.errors)
		if sp.Name == "" && len(ports) > 1 {
			p.fail(at + ".name: Required value")
		}
		if names[sp.Name] && (sp.Name != "" || len(ports) == 1) {
			p.fail(duplicate(at+".name", sp.Name))
		}
		if sp.Port < 1 || sp.Port > 65535 {
			p.fail(invalidInt(at+".port", int(sp.Port), portRange))
		}
		if !knownProtocol(out.Protocol) {
			p.fail(notSupported(at+".protocol", out.Protocol, protocols))
		}
		if n := (number{out.Protocol, sp.Port}); numbers[n] {
			p.fail(duplicate(at, fmt.Sprintf("%d/%s", sp.Port, out.Protocol)))
		} else {
			numbers[n] = true
		}
		names[sp.Name] = true
		out.NodePort = p.nodePort(sp, at)
		if n := (number{out.Protocol, int32(out.NodePort)}); out.NodePort != 0 && nodePorts[n] {
			p.fail(at + fmt.Sprintf(".nodePort: Duplicate value: %d", out.NodePort))
		} else {
			nodePorts[n] = true
		}
		if len(p.errors) > faults {
			continue
		}
		if out.Protocol == string(corev1.ProtocolSCTP) && p.supported&FeatureSCTP == 0 {
			p.setUnsupported(at + ".protocol: SCTP")
		}
		out.Port = uint16(sp.Port)
		p.out.Ports = append(p.out.Ports, out)
	}
}

// nodePort is a port's node port, 0 for none.
func (p *parser) nodePort(sp *corev1.ServicePort, at string) uint16 {
	switch {
	case sp.NodePort == 0:
		return 0
	case sp.NodePort < 0 || sp.NodePort > 65535:
		p.fail(invalidInt(at+".nodePort", int(sp.NodePort), portRange))
		return 0
	case p.obj.Spec.Type == corev1.ServiceTypeClusterIP:
		p.fail(at + ".nodePort: Forbidden: may not be used when `type` is 'ClusterIP'")
		return 0
	}
	return uint16(sp.NodePort)
}

// addresses takes each of the cluster, ingress and external IPs.
func (p *parser) addresses() {
	if p.out.ExternalName {
		return
	}
	s := &p.obj.Spec
	p.families()
	ips := s.ClusterIPs
	if len(ips) == 0 && s.ClusterIP != "" {
		ips = []string{s.ClusterIP}
	}
	if !p.out.Headless {
		seen := map[netip.Addr]bool{}
		for i, text := range ips {
			p.address(&p.out.ClusterIPs, seen, index("spec.clusterIPs", i), text)
		}
	}
	if p.out.Families == 0 {
		for _, a := range p.out.ClusterIPs {
			p.out.Families |= familyOf(a)
		}
	}
	seen := map[netip.Addr]bool{}
	for i, text := range s.ExternalIPs {
		p.address(&p.out.ExternalIPs, seen, index("spec.externalIPs", i), text)
	}
	seen = map[netip.Addr]bool{}
	for i, in := range p.obj.Status.LoadBalancer.Ingress {
		switch {
		case in.IP == "" && in.Hostname != "":
			p.out.Unserved = append(p.out.Unserved, UnservedIngress{Shortened(in.Hostname, maxName), "the entry has a host name and no address"})
		case in.IP == "":
		case in.IPMode != nil && *in.IPMode == corev1.LoadBalancerIPModeProxy:
			// Traffic to it reaches the node translated already (KEP-1860).
			p.out.Unserved = append(p.out.Unserved, UnservedIngress{Shortened(in.IP, maxName), "ipMode is Proxy: the load balancer in front sends to node ports"})
		default:
			p.address(&p.out.LoadBalancerIPs, seen, index("status.loadBalancer.ingress", i)+".ip", in.IP)
		}
	}
}

// address adds an address to a list, of which seen has those before.
func (p *parser) address(to *[]netip.Addr, seen map[netip.Addr]bool, path, text string) {
	a, reason := checkAddr(text)
	switch {
	case reason != "":
		p.soft = append(p.soft, invalid(path, text, reason))
	case seen[a]:
		p.soft = append(p.soft, duplicate(path, text))
	case !p.out.serves(a):
		p.out.Warnings = append(p.out.Warnings, p.out.otherFamilyWarning(path+": "+a.String()))
	default:
		seen[a] = true
		*to = append(*to, a)
	}
}

// ConditionTerms is the type of the condition of a Service's status that says for which
// externalTrafficPolicy, its reason, the Service was given its addresses.
const ConditionTerms = "weir.dev/AddressTerms"

// terms compares the policy with that for which the addresses were given.
func (p *parser) terms() {
	for i := range p.obj.Status.Conditions {
		if c := &p.obj.Status.Conditions[i]; c.Type == ConditionTerms {
			p.out.PolicyChanged = (c.Reason == string(corev1.ServiceExternalTrafficPolicyLocal)) != p.out.Policy.ExternalLocal
		}
	}
}

// policies reads the traffic policies. As in kube-proxy, a Service that
// cannot be reached from outside has no external policy.
func (p *parser) policies() {
	s, pol := &p.obj.Spec, &p.out.Policy
	pol.External = len(p.out.LoadBalancerIPs) > 0 || len(p.out.ExternalIPs) > 0 ||
		slices.ContainsFunc(p.out.Ports, func(q Port) bool { return q.NodePort != 0 })
	if p.out.ExternalName {
		return
	}
	if itp := s.InternalTrafficPolicy; itp != nil {
		switch *itp {
		case corev1.ServiceInternalTrafficPolicyCluster, "":
		case corev1.ServiceInternalTrafficPolicyLocal:
			pol.InternalLocal = true
		default:
			p.fail(notSupported("spec.internalTrafficPolicy", string(*itp), `"Cluster", "Local"`))
			p.setUnsupported("spec.internalTrafficPolicy")
		}
	}
	switch s.ExternalTrafficPolicy {
	case corev1.ServiceExternalTrafficPolicyCluster, "":
	case corev1.ServiceExternalTrafficPolicyLocal:
		pol.ExternalLocal = s.Type == corev1.ServiceTypeLoadBalancer || s.Type == corev1.ServiceTypeNodePort ||
			len(s.ExternalIPs) > 0 || s.Type == "" && pol.External
	default:
		p.fail(notSupported("spec.externalTrafficPolicy", string(s.ExternalTrafficPolicy), `"Cluster", "Local"`))
		p.setUnsupported("spec.externalTrafficPolicy")
	}
	if s.Type == corev1.ServiceTypeLoadBalancer && pol.ExternalLocal {
		if n := s.HealthCheckNodePort; n < 0 || n > 65535 {
			p.fail(invalidInt("spec.healthCheckNodePort", int(n), portRange))
		} else {
			p.out.HealthCheckNodePort = uint16(n)
		}
	}
}

// affinity reads spec.sessionAffinity.
func (p *parser) affinity() {
	s := &p.obj.Spec
	switch s.SessionAffinity {
	case corev1.ServiceAffinityNone, "":
		return
	case corev1.ServiceAffinityClientIP:
	default:
		p.fail(notSupported("spec.sessionAffinity", string(s.SessionAffinity), `"ClientIP", "None"`))
		p.setUnsupported("spec.sessionAffinity")
		return
	}
	seconds := corev1.DefaultClientIPServiceAffinitySeconds
	if c := s.SessionAffinityConfig; c != nil && c.ClientIP != nil && c.ClientIP.TimeoutSeconds != nil {
		seconds = *c.ClientIP.TimeoutSeconds
	}
	if seconds < 1 || seconds > 86400 {
		p.fail(invalidInt("spec.sessionAffinityConfig.clientIP.timeoutSeconds", int(seconds), "must be greater than 0 and less than 86400"))
		p.setUnsupported("spec.sessionAffinityConfig.clientIP.timeoutSeconds")
		return
	}
	p.out.AffinitySeconds = int(seconds)
	if p.supported&FeatureClientIPAffinity == 0 {
		p.setUnsupported("spec.sessionAffinity: ClientIP")
	}
}

// sourceRanges reads the clients that may use the load balancer addresses, whatever the type
// of a Service that has some. As in kube-proxy, a range of all addresses means no
// limit for that family.
func (p *parser) sourceRanges() {
	s := &p.obj.Spec
	if s.Type != corev1.ServiceTypeLoadBalancer && len(p.out.LoadBalancerIPs) == 0 {
		return
	}
	const path = "spec.loadBalancerSourceRanges"
	texts := s.LoadBalancerSourceRanges
	if len(texts) == 0 {
		texts = splitList(p.obj.Annotations[annotationSourceRanges])
	}
	open4, open6 := false, false
	for i, text := range texts {
		prefix, ok := parsePrefix(text)
		switch {
		case !ok:
			p.fail(invalid(index(path, i), text, "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)"))
			p.setUnsupported(path)
		case prefix.Bits() == 0 && prefix.Addr().Is4():
			open4 = true
		case prefix.Bits() == 0:
			open6 = true
		default:
			p.out.SourceRanges = append(p.out.SourceRanges, prefix)
		}
	}
	p.out.SourceRanges = slices.DeleteFunc(p.out.SourceRanges, func(r netip.Prefix) bool {
		return open4 && r.Addr().Is4() || open6 && r.Addr().Is6()
	})
	if len(p.out.SourceRanges) > 0 && p.supported&FeatureSourceRanges == 0 {
		p.setUnsupported(path)
	}
}

// parsePrefix takes a CIDR as Kubernetes does, with blanks around it.
func parsePrefix(text string) (netip.Prefix, bool) {
	_, n, err := utilnet.ParseCIDRSloppy(strings.TrimSpace(text))
	if err != nil {
		return netip.Prefix{}, false
	}
	a, ok := netip.AddrFromSlice(n.IP)
	bits, _ := n.Mask.Size()
	return netip.PrefixFrom(a, bits), ok
}

// setAnnotations takes over the options of the annotations.
func (p *parser) setAnnotations(w *annotationOptions) {
	pol := &p.out.Policy
	pol.TopologyKeys, pol.Distribution, pol.MinReadyPercent = w.keys, w.distribution, w.percent
	p.out.Options = w.opts
	if w.unsupported != "" {
		p.setUnsupported(w.unsupported)
	} else if field := w.opts.unsupportedFeature(p.supported); field != "" {
		p.setUnsupported(field)
	}
}
