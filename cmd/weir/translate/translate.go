package translate

import (
	"math"
	"net/netip"
	"slices"

	"github.com/weirlb/weir/cmd/weir/problem"
	"github.com/weirlb/weir/discovery"
	"github.com/weirlb/weir/lb/header"
	"github.com/weirlb/weir/lb/table"
	"github.com/weirlb/weir/topology"
)

// scratch holds the slices of a batch. The next batch reuses them.
type scratch struct {
	frontends []table.Frontend
	pools     []table.Pool
	endpoints []table.Endpoint
	listed    []table.ListedEndpoint
	chosen    []bool
}

// maxScratch is the number of endpoints that the scratch keeps room for between batches; a
// larger batch allocates.
const maxScratch = 1 << 14

func (w *scratch) large() bool {
	return cap(w.endpoints) > maxScratch || cap(w.listed) > maxScratch || cap(w.frontends) > maxScratch
}

func (w *scratch) reset() {
	w.frontends = w.frontends[:0]
	w.pools = w.pools[:0]
	w.endpoints = w.endpoints[:0]
	w.listed = w.listed[:0]
}

// translate returns a Service with the frontends on this node and their pools.
func (t *Translator) translate(svc *discovery.Service) (table.Service, []problem.Problem) {
	return t.translateTo(svc, nil)
}

// translateTo is translate, which adds every claim of the Service to claims,
// unless that is nil.
func (t *Translator) translateTo(svc *discovery.Service, claims *[]Claim) (table.Service, []problem.Problem) {
	w := &t.work
	s := translation{t: t, svc: svc, frontends: len(w.frontends), pools: len(w.pools), listed: len(w.listed), claims: claims}
	lists, ok := s.denyLists()
	for i := range svc.Ports {
		if ok {
			s.port(i)
		}
	}
	s.otherClass()
	// Capped: later Services of the batch must not append into them.
	return table.Service{
		Name:    svc.Name.String(),
		Created: svc.Created,
		// For the announcement.
		PolicyChanged: svc.PolicyChanged,
		Labels:        svc.Labels,
		Frontends:     slices.Clip(w.frontends[s.frontends:]),
		Pools:         slices.Clip(w.pools[s.pools:]),
		Policy:        policy(svc, lists),
		Listed:        slices.Clip(w.listed[s.listed:]),
	}, s.problems
}

// translation is a Service being translated.
type translation struct {
	t                        *Translator
	svc                      *discovery.Service
	frontends, pools, listed int        // where it begins in the scratch
	own                      *Frontends // nil before they are asked for
	problems                 []problem.Problem
	claims                   *[]Claim // of an explanation, else nil
}

// port adds a Service port: per address family the frontends, then the
// pools that they need.
func (s *translation) port(i int) {
	p := &s.svc.Ports[i]
	proto, ok := header.ProtocolNumber(string(p.Protocol))
	if !ok {
		return // Service.Unsupported has the reason
	}
	for _, ipv6 := range []bool{false, true} {
		f := familyPort{translation: s, index: i, port: p, proto: proto, ipv6: ipv6, cluster: -1, local: -1}
		f.add()
	}
}

// familyPort is a Service port in an address family, as seen by kube-proxy's proxier of
// that family.
type familyPort struct {
	*translation
	index int // of port
	port  *discovery.Port
	proto uint8
	ipv6  bool

	resolved       bool
	crossed        bool // endpoints are those of the other family, through a tunnel
	eps            []topology.Endpoint
	result         topology.Result
	cluster, local int // pools, relative to the Service's first; -1: not made
}

func (f *familyPort) add() {
	svc, opts := f.svc, &f.t.opts
	if f.port.NodePort != 0 && servesFamily(f.svc, f.ipv6) {
		for _, addr := range opts.NodeAddresses {
			f.frontend(addr, discovery.PortRange{First: f.port.NodePort}, table.NodePort)
		}
	}
	port := discovery.PortRange{First: f.port.Port}
	balanced := port
	if svc.Options.PortRange.Contains(f.port.Port) {
		balanced = svc.Options.PortRange
	}
	for _, addr := range svc.LoadBalancerIPs {
		if opts.LoadBalancerClass == "" || opts.LoadBalancerClass == svc.LoadBalancerClass {
			f.frontend(addr, balanced, table.LoadBalancer)
		} else {
			f.refuse(addr, balanced, table.LoadBalancer, "loadBalancerClass of the configuration is another one")
		}
	}
	if opts.ExternalIPs {
		for _, addr := range svc.ExternalIPs {
			f.frontend(addr, port, table.ExternalIP)
		}
	} else if f.claims != nil {
		for _, addr := range svc.ExternalIPs {
			f.refuse(addr, port, table.ExternalIP, "externalIPs is off in the configuration")
		}
	}
	if opts.ClusterIPs {
		for _, addr := range svc.ClusterIPs {
			f.frontend(addr, port, table.ClusterIP)
		}
	}
	if f.resolved {
		f.list()
	}
}

// frontend adds a frontend, unless the address is of the other family, or the frontend
// would block access to the node itself. ports.Last is 0 for a single port.
func (f *familyPort) frontend(addr netip.Addr, ports discovery.PortRange, kind table.Kind) {
	addr = addr.Unmap()
	if !addr.IsValid() || addr.Is4() == f.ipv6 {
		return
	}
	opts := &f.t.opts
	first := netip.AddrPortFrom(addr, ports.First)
	if ports.Last != 0 && f.t.own(addr) {
		f.complain(problem.ProtectedPort, f.field(kind), "%s %s is not taken: a range of ports on the node's own address would take the answers to the node's own connections",
			kind, table.AddressText(first, ports.Last))
		f.refuse(addr, ports, kind, "a range of ports is not taken on the node's own addresses")
		return
	}
	if slices.Contains(opts.ProtectedPorts, ports.First) && f.t.own(addr) {
		f.complain(problem.ProtectedPort, f.field(kind), "%s %s is not taken: port %d is protected on the node's own addresses (protectedPorts)",
			kind, first, ports.First)
		f.refuse(addr, ports, kind, "the port is protected on the node's own addresses (protectedPorts)")
		return
	}
	if field := f.listener(first); field != "" && f.t.own(addr) {
		f.complain(problem.ProtectedPort, f.field(kind), "%s %s is not taken: Weir itself listens there (%s)", kind, first, field)
		f.refuse(addr, ports, kind, "Weir itself listens there ("+field+")")
		return
	}
	if opts.SNATPorts.Contains(ports.First) && f.t.own(addr) {
		f.complain(problem.ServiceWarning, f.field(kind), "%s %s has a port in snat.ports %s of the configuration, which Weir takes on the node's addresses: choose another port",
			kind, first, opts.SNATPorts)
	}
	sent := first
	if ports.Last != 0 {
		sent = netip.AddrPortFrom(addr, f.port.Port) // each port is that of the endpoint
	}
	mode, ok := f.frontendMode(sent, kind)
	if !ok {
		f.refuse(addr, ports, kind, "the endpoints are of the other address family, and no tunnel leads to them")
		return
	}
	f.claim(addr, ports, kind, mode)
	local := f.svc.Policy.ExternalLocal
	if kind == table.ClusterIP {
		local = f.svc.Policy.InternalLocal
	}
	w := &f.t.work
	pool := f.pool(local)
	w.frontends = append(w.frontends, table.Frontend{
		AddrPort:     first,
		LastPort:     ports.Last,
		Proto:        f.proto,
		Kind:         kind,
		Pool:         pool,
		Port:         f.port.Port,
		Mode:         mode,
		ClusterScope: kind == table.ClusterIP,
	})
}

// listener is the field that has Weir listen at an own address of the node, "" if none does.
func (f *familyPort) listener(at netip.AddrPort) string {
	if f.t.opts.Listener == nil {
		return ""
	}
	return f.t.opts.Listener(at, f.port.Protocol == "UDP")
}

// own reports whether addr is one of the node's addresses. It notes that it was
// asked: the Service is translated again when these change.
func (t *Translator) own(addr netip.Addr) bool {
	t.askedOwn = true
	if t.opts.Local != nil && t.opts.Local(addr) {
		return true
	}
	return slices.Contains(t.opts.NodeAddresses, addr)
}

// pool is the index of the pool for a policy, made when first needed.
func (f *familyPort) pool(local bool) int {
	f.resolve()
	at, chosen := &f.cluster, f.result.Cluster
	if local {
		at, chosen = &f.local, f.result.Local
	}
	if *at >= 0 {
		return *at
	}
	w := &f.t.work
	p := table.Pool{AffinitySeconds: f.svc.AffinitySeconds, OnEmpty: table.Reject, Tier: string(topology.TierNone)}
	p.Algorithm, p.SlowStart = f.t.algorithm(f.svc), f.t.slowStart(f.svc)
	if chosen != nil {
		p.Tier = string(chosen.Tier)
		p.Endpoints = f.endpoints(chosen)
	}
	// Endpoints elsewhere may serve through another node: silence lets a load balancer in
	// front go on to that node. No endpoint at all, or none
	// that topologyKeys allow, is refused at once.
	if local && f.result.HasAnyEndpoints {
		p.OnEmpty = table.Drop
	}
	p.AnyReady = f.result.AnyReady
	*at = len(w.pools) - f.pools
	w.pools = append(w.pools, p)
	return *at
}

// resolve asks topology, once per port and family.
func (f *familyPort) resolve() {
	if f.resolved {
		return
	}
	f.resolved = true
	w := &f.t.work
	// A load balancer address of a family that the Service does not have
	// otherwise can be served through a tunnel.
	f.crossed = tunnel(f.t.mode(f.svc)) && !servesFamily(f.svc, f.ipv6)
	f.eps = f.ready(ofFamily(f.port.Endpoints, f.ipv6 != f.crossed))
	f.result = topology.Select(f.svc.Policy, f.eps, f.t.opts.Node)
	w.chosen = append(w.chosen[:0], make([]bool, len(f.eps))...)
}

// ofFamily returns the endpoints of a family: they are sorted by address,
// IPv4 first.
func ofFamily(eps []topology.Endpoint, ipv6 bool) []topology.Endpoint {
	at, _ := slices.BinarySearchFunc(eps, true, func(e topology.Endpoint, _ bool) int {
		if e.AddrPort.Addr().Is4() {
			return -1
		}
		return 1
	})
	if ipv6 {
		return eps[at:]
	}
	return eps[:at]
}

// shareUnit is the weight of the whole where endpoints have unequal shares.
const shareUnit = 1 << 16

func (f *familyPort) endpoints(c *topology.Chosen) []table.Endpoint {
	w := &f.t.work
	start := len(w.endpoints)
	for i, n := range c.Endpoints {
		e := &f.eps[n]
		weight := max(1, e.Weight)
		if c.Shares != nil {
			if c.Shares[i] <= 0 {
				continue
			}
			weight = max(1, uint32(math.Round(c.Shares[i]*shareUnit)))
		}
		f.t.work.chosen[n] = true
		w.endpoints = append(w.endpoints, table.Endpoint{
			AddrPort: e.AddrPort,
			Weight:   weight,
			Local:    f.onNode(e),
		})
	}
	return slices.Clip(w.endpoints[start:])
}

// onNode reports whether an endpoint runs on Weir's own node.
func (f *familyPort) onNode(e *topology.Endpoint) bool {
	return e.NodeName != "" && e.NodeName == f.t.opts.Node.Name
}

// list names the endpoints that exist and get no new flows: those that they
// have go on. UDP leaves an endpoint that does not serve while another does, as with
// kube-proxy, which removes such entries of conntrack.
func (f *familyPort) list() {
	w := &f.t.work
	leaves := f.proto == header.ProtoUDP && slices.Contains(w.chosen, true) && !f.belongsToEndpoint()
	for i := range f.eps {
		if !w.chosen[i] && !(leaves && !f.eps[i].Serving) {
			w.listed = append(w.listed, table.ListedEndpoint{AddrPort: f.eps[i].AddrPort, Proto: f.proto, Local: f.onNode(&f.eps[i]), Port: f.port.Port})
		}
	}
}

// belongsToEndpoint reports whether no other endpoint can go on with a datagram's flow: the
// endpoint has a name in the client's packets, or answers the client itself.
func (f *familyPort) belongsToEndpoint() bool {
	return direct(f.t.mode(f.svc)) || f.svc.Options.QUICConnectionID.Length != 0
}

// servesFamily reports whether node ports of a family are the Service's: a
// single-stack Service leaves those of the other family alone, as kube-proxy
// does. A Service without families, in a hand-written manifest, has those of its endpoints.
func servesFamily(svc *discovery.Service, ipv6 bool) bool {
	if svc.Families != 0 {
		if ipv6 {
			return svc.Families&discovery.IPv6 != 0
		}
		return svc.Families&discovery.IPv4 != 0
	}
	any4, any6 := false, false
	for i := range svc.Ports {
		if eps := svc.Ports[i].Endpoints; len(eps) > 0 {
			any4 = any4 || eps[0].AddrPort.Addr().Is4()
			any6 = any6 || eps[len(eps)-1].AddrPort.Addr().Is6()
		}
	}
	if ipv6 {
		return any6
	}
	return any4 || !any6
}
