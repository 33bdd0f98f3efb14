// Package testbed is the network in which packet paths are measured beside
// each other: a client, the node under test and the endpoints' node, joined by
// veth pairs, with a chosen CPU for every kind of work.
//
//	client --- c0 ======= l0 --- node --- l1 ======= b0 --- backend
//	      10.1.0.2      10.1.0.1      10.2.0.1      10.2.0.2
//	10.192.0.0/10 behind it                  endpoints 10.64.0.0/16 behind it
//
// The client reaches 10.3.0.0/24, where frontends are, and the endpoints
// through the node; the backend reaches the client networks and 10.4.0.0/24,
// where SNAT addresses are, through the node.
//
// # CPUs
//
// The node has one CPU, the LB core: it receives packets there (by
// threads of its interfaces' NAPI), and its processes run there. The generator
// and the threads that receive at client and backend have the other, the load
// core, receivers first. Whatever else runs on the machine comes after both.
package testbed

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/perf/netlab"
)

// Interfaces, by where they are.
const (
	ClientLink  = "c0"
	NodeFront   = "l0" // towards clients
	NodeBack    = "l1" // towards endpoints
	BackendLink = "b0"
)

// Addresses of the testbed.
var (
	Client      = netip.MustParseAddr("10.1.0.2")
	NodeClient  = netip.MustParseAddr("10.1.0.1")
	NodeBackend = netip.MustParseAddr("10.2.0.1")
	Backend     = netip.MustParseAddr("10.2.0.2")
	Frontend    = netip.MustParseAddr("10.3.0.1")
	// SNAT is where translated packets come from, for peers that can choose.
	SNAT = netip.MustParseAddr("10.4.0.1")
	// FirstClient and FirstEndpoint are the first of Clients and Endpoints.
	FirstClient   = netip.MustParseAddr("10.192.0.0")
	FirstEndpoint = netip.MustParseAddr("10.64.0.1")

	Frontends = netip.MustParsePrefix("10.3.0.0/24")
	SNATs     = netip.MustParsePrefix("10.4.0.0/24")
	Clients   = netip.MustParsePrefix("10.192.0.0/10")
	Endpoints = netip.MustParsePrefix("10.64.0.0/16")
)

// Setting is how client and backend receive.
type Setting string

const (
	// Threaded: client and backend receive in threads of their own on the load
	// core, as machines of their own would.
	Threaded Setting = "threaded"
	// Default: veth as the kernel makes it. The sender does the receiver's part of the
	// work, for the node on the LB core.
	Default Setting = "default"
)

// Bed is a testbed.
type Bed struct {
	*netlab.Lab
	Client  *netlab.Namespace
	Node    *netlab.Namespace
	Backend *netlab.Namespace

	Setting  Setting
	LBCore   int
	LoadCore int

	// NodeMAC is that of l0: where the client sends to.
	NodeMAC, ClientMAC net.HardwareAddr

	napi []napiThread
}

// New builds a testbed.
func New(setting Setting) (*Bed, error) {
	lb, load, err := cores()
	if err != nil {
		return nil, err
	}
	lab, err := netlab.New()
	if err != nil {
		return nil, err
	}
	b := &Bed{Lab: lab, Setting: setting, LBCore: lb, LoadCore: load}
	restore, err := b.placeSelf()
	if err == nil {
		lab.OnClose(restore)
		err = b.build()
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("testbed: %w", err), lab.Close())
	}
	return b, nil
}

// cores are the last and the first CPU that this process may use.
func cores() (lb, load int, err error) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return 0, 0, err
	}
	lb, load = -1, -1
	for n := range 1 << 10 {
		if set.IsSet(n) {
			if load < 0 {
				load = n
			}
			lb = n
		}
	}
	if set.Count() < 2 {
		return 0, 0, errors.New("two CPUs are needed: one for the load balancer, one for the load")
	}
	return lb, load, nil
}

func (b *Bed) build() error {
	var err error
	for _, n := range []struct {
		name string
		to   **netlab.Namespace
	}{{"client", &b.Client}, {"node", &b.Node}, {"backend", &b.Backend}} {
		if *n.to, err = b.Namespace(n.name); err != nil {
			return err
		}
	}
	on := func(a netip.Addr) []netip.Prefix { return []netip.Prefix{netip.PrefixFrom(a, 16)} }
	err = netlab.Connect(
		netlab.End{Namespace: b.Client, Name: ClientLink, Addrs: on(Client)},
		netlab.End{Namespace: b.Node, Name: NodeFront, Addrs: on(NodeClient)}, netlab.LinkConfig{})
	if err != nil {
		return err
	}
	err = netlab.Connect(
		netlab.End{Namespace: b.Node, Name: NodeBack, Addrs: on(NodeBackend)},
		netlab.End{Namespace: b.Backend, Name: BackendLink, Addrs: on(Backend)}, netlab.LinkConfig{})
	if err != nil {
		return err
	}
	for _, step := range []func() error{b.route, b.placeNAPI, b.placeNode} {
		if err := step(); err != nil {
			return err
		}
	}
	if b.NodeMAC, err = mac(b.Node, NodeFront); err != nil {
		return err
	}
	b.ClientMAC, err = mac(b.Client, ClientLink)
	return err
}

func (b *Bed) route() error {
	if err := b.Node.SetSysctl("net/ipv4/ip_forward", "1"); err != nil {
		return err
	}
	// Client and backend hold all addresses of their networks, so that
	// servers and clients can be bound to any.
	for _, l := range []struct {
		n   *netlab.Namespace
		net netip.Prefix
	}{{b.Client, Clients}, {b.Backend, Endpoints}} {
		if err := l.n.AddLocal(l.net); err != nil {
			return err
		}
	}
	for _, r := range []struct {
		n    *netlab.Namespace
		link string
		to   netip.Prefix
		via  netip.Addr
	}{
		{b.Client, ClientLink, Frontends, NodeClient},
		{b.Client, ClientLink, Endpoints, NodeClient},
		{b.Node, NodeFront, Clients, Client},
		{b.Node, NodeBack, Endpoints, Backend},
		{b.Backend, BackendLink, Clients, NodeBackend},
		{b.Backend, BackendLink, SNATs, NodeBackend},
		{b.Backend, BackendLink, netip.PrefixFrom(NodeClient, 16).Masked(), NodeBackend},
	} {
		if err := r.n.AddRoute(r.link, r.to, r.via); err != nil {
			return err
		}
	}
	return nil
}

func mac(n *netlab.Namespace, name string) (net.HardwareAddr, error) {
	l, err := n.Interface(name)
	if err != nil {
		return nil, err
	}
	return l.Attrs().HardwareAddr, nil
}

// Endpoint is endpoint i, from 0.
func Endpoint(i int) netip.Addr {
	a := FirstEndpoint.As4()
	n := uint32(a[0])<<24 | uint32(a[1])<<16 | uint32(a[2])<<8 | uint32(a[3])
	n += uint32(i)
	return netip.AddrFrom4([4]byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)})
}
