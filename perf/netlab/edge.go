package netlab

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
)

// Edge is the standard topology: an edge node between clients and backends.
//
//	client ---------- edge ---------- fabric ---------- zoneb
//	  eth0      eth0   | |   eth1      br0 |      eth1  eth0
//	 .10.2      .10.1  | |  .20.1   .20.254|   .30.254  .30.12
//	                   | cni0 .40.1        +- zonea eth0 .20.11
//	                   |   |                    | cni0 .41.1
//	                   |  pod .40.2             |   |
//	                vxlan0 .42.1 = = = = = = vxlan0 |   overlay
//	                                       .42.11  overlay .41.2
//
// Every address exists as 10.N.0.x/24 and fdN::x/64. The client reaches
// 10.99.0.0/24 and fd99::/64 (load balancer IPs) through the edge node, which
// holds none of them. The edge node forwards only from and to cni0 and
// vxlan0, as a CNI plugin sets it up, never between client and fabric, and
// has no netfilter rules.
type Edge struct {
	*Lab
	Client *Namespace // clients
	Edge   *Namespace // the node that runs Weir: eth0 to clients, eth1 to backends
	Fabric *Namespace // switch of eth1's network and router to zone b
	Pod    *Namespace // pod on the edge node, behind the bridge cni0
	ZoneA  *Namespace // node in the edge node's zone, on eth1's network
	Remote *Namespace // pod on ZoneA that the edge node reaches by VXLAN only
	ZoneB  *Namespace // node in another zone, behind the router
}

// EdgeConfig adapts the standard topology.
type EdgeConfig struct {
	Queues int // queues of eth0 and eth1; 0: 1
	MTU    int // of the client and fabric links; 0: 1500
	// ClientMTU is that of the client link alone; 0: MTU.
	ClientMTU int
	// NoOverlay leaves the VXLAN out, for kernels without VXLAN: Remote is
	// then out of the edge node's reach.
	NoOverlay bool
}

// Host is an address of the standard topology: network n, host x, for
// example Host4(20, 11) = 10.20.0.11.
func Host4(network, host uint8) netip.Addr { return netip.AddrFrom4([4]byte{10, network, 0, host}) }

// Host6 is the IPv6 address with the same decimal digits: Host6(20, 11) =
// fd20::11.
func Host6(network, host uint8) netip.Addr {
	return netip.MustParseAddr(fmt.Sprintf("fd%d::%d", network, host))
}

// Networks of the standard topology.
const (
	ClientNet  = 10
	FabricNet  = 20
	ZoneBNet   = 30
	PodNet     = 40
	RemoteNet  = 41
	OverlayNet = 42
	LBNet      = 99 // load balancer IPs, held by no interface
)

// on returns the addresses of a host in both families, with the network's prefix length.
func on(network, host uint8) []netip.Prefix {
	return []netip.Prefix{netip.PrefixFrom(Host4(network, host), 24), netip.PrefixFrom(Host6(network, host), 64)}
}

// NewEdge builds the standard topology in a new lab.
func NewEdge(cfg EdgeConfig) (*Edge, error) {
	lab, err := New()
	if err != nil {
		return nil, err
	}
	e := &Edge{Lab: lab}
	if err := e.build(cfg); err != nil {
		return nil, errors.Join(err, lab.Close())
	}
	return e, nil
}

func (e *Edge) build(cfg EdgeConfig) error {
	for _, n := range []struct {
		to   **Namespace
		name string
	}{
		{&e.Client, "client"}, {&e.Edge, "edge"}, {&e.Fabric, "fabric"}, {&e.Pod, "pod"},
		{&e.ZoneA, "zonea"}, {&e.Remote, "remote"}, {&e.ZoneB, "zoneb"},
	} {
		ns, err := e.Namespace(n.name)
		if err != nil {
			return err
		}
		*n.to = ns
	}
	for _, step := range []func(EdgeConfig) error{e.links, e.overlay, e.routes, e.settings} {
		if err := step(cfg); err != nil {
			return err
		}
	}
	for _, n := range e.Namespaces() {
		if err := n.settle(); err != nil {
			return err
		}
	}
	return nil
}

func (e *Edge) links(cfg EdgeConfig) error {
	outer := LinkConfig{MTU: cfg.MTU, Queues: cfg.Queues}
	wire := outer
	wire.Wire = true
	client := wire
	if cfg.ClientMTU > 0 {
		client.MTU = cfg.ClientMTU
	}
	return errors.Join(
		Connect(End{Namespace: e.Client, Name: "eth0", Addrs: on(ClientNet, 2)},
			End{Namespace: e.Edge, Name: "eth0", Addrs: on(ClientNet, 1)}, client),
		Connect(End{Namespace: e.Edge, Name: "eth1", Addrs: on(FabricNet, 1)},
			End{Namespace: e.Fabric, Name: "edge"}, wire),
		Connect(End{Namespace: e.ZoneA, Name: "eth0", Addrs: on(FabricNet, 11)},
			End{Namespace: e.Fabric, Name: "zonea"}, outer),
		Connect(End{Namespace: e.ZoneB, Name: "eth0", Addrs: on(ZoneBNet, 12)},
			End{Namespace: e.Fabric, Name: "eth1", Addrs: on(ZoneBNet, 254)}, outer),
		e.Fabric.Bridge("br0", []string{"edge", "zonea"}, on(FabricNet, 254)...),

		Connect(End{Namespace: e.Pod, Name: "eth0", Addrs: on(PodNet, 2)},
			End{Namespace: e.Edge, Name: "pod"}, LinkConfig{}),
		e.Edge.Bridge("cni0", []string{"pod"}, on(PodNet, 1)...),
		Connect(End{Namespace: e.Remote, Name: "eth0", Addrs: on(RemoteNet, 2)},
			End{Namespace: e.ZoneA, Name: "pod"}, LinkConfig{}),
		e.ZoneA.Bridge("cni0", []string{"pod"}, on(RemoteNet, 1)...),
	)
}

func (e *Edge) overlay(cfg EdgeConfig) error {
	const vni = 42
	if cfg.NoOverlay {
		return nil
	}
	edge, zonea := Host4(FabricNet, 1), Host4(FabricNet, 11)
	return errors.Join(
		e.Edge.VXLAN("vxlan0", vni, edge, zonea, on(OverlayNet, 1)...),
		e.ZoneA.VXLAN("vxlan0", vni, zonea, edge, on(OverlayNet, 11)...),
	)
}

func (e *Edge) routes(cfg EdgeConfig) error {
	var errs []error
	add := func(n *Namespace, ifname string, dst4, dst6 netip.Prefix, network, via uint8) {
		errs = append(errs,
			n.AddRoute(ifname, dst4, Host4(network, via)), n.AddRoute(ifname, dst6, Host6(network, via)))
	}
	net4 := func(n uint8) netip.Prefix { return netip.PrefixFrom(Host4(n, 0), 24) }
	net6 := func(n uint8) netip.Prefix { return netip.PrefixFrom(Host6(n, 0), 64) }

	add(e.Client, "eth0", net4(LBNet), net6(LBNet), ClientNet, 1)
	add(e.Edge, "eth0", any4, any6, ClientNet, 2)
	add(e.Edge, "eth1", net4(ZoneBNet), net6(ZoneBNet), FabricNet, 254)
	if !cfg.NoOverlay {
		add(e.Edge, "vxlan0", net4(RemoteNet), net6(RemoteNet), OverlayNet, 11)
	}
	add(e.Fabric, "br0", any4, any6, FabricNet, 1)
	add(e.ZoneA, "eth0", any4, any6, FabricNet, 254)
	add(e.ZoneB, "eth0", any4, any6, ZoneBNet, 254)
	add(e.Pod, "eth0", any4, any6, PodNet, 1)
	add(e.Remote, "eth0", any4, any6, RemoteNet, 1)
	return errors.Join(errs...)
}

// settings makes routers of the nodes that are ones, and a hard case of the
// edge node: strict reverse path filtering and no forwarding but on the CNI's
// own interfaces.
func (e *Edge) settings(cfg EdgeConfig) error {
	router := []string{"net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"}
	var errs []error
	for _, n := range []*Namespace{e.Fabric, e.ZoneA} {
		for _, key := range router {
			errs = append(errs, n.SetSysctl(key, "1"))
		}
	}
	for _, key := range router {
		errs = append(errs, e.Edge.SetSysctl(key, "0"))
	}
	forwarding := []string{"cni0"}
	if !cfg.NoOverlay {
		forwarding = append(forwarding, "vxlan0")
	}
	for _, ifname := range forwarding {
		errs = append(errs, e.Edge.SetSysctl("net/ipv4/conf/"+ifname+"/forwarding", "1"), forward6(e.Edge, ifname))
	}
	for _, ifname := range []string{"eth0", "eth1"} {
		errs = append(errs,
			e.Edge.SetSysctl("net/ipv4/conf/"+ifname+"/forwarding", "0"),
			e.Edge.SetSysctl("net/ipv4/conf/"+ifname+"/rp_filter", "1"))
	}
	// The client stands for many: more source ports than the default of a host.
	// Ports 20000 to 20999 are left to connections that name their port.
	errs = append(errs,
		e.Client.SetSysctl("net/ipv4/ip_local_port_range", "1024 65535"),
		e.Client.SetSysctl("net/ipv4/ip_local_reserved_ports", "20000-20999"))
	return errors.Join(errs...)
}

// forward6 enables IPv6 forwarding of packets that arrive on ifname. Before Linux 6.17 the
// only switch is that of the whole namespace.
func forward6(n *Namespace, ifname string) error {
	err := n.SetSysctl("net/ipv6/conf/"+ifname+"/force_forwarding", "1")
	if errors.Is(err, os.ErrNotExist) {
		return n.SetSysctl("net/ipv6/conf/all/forwarding", "1")
	}
	return err
}
