package netlab

import (
	"errors"
	"fmt"
	"net/netip"
)

// Fleet is several nodes behind a router that spreads flows over them:
//
//	client ---------- router ---------- node1 ... nodeN, server
//	  eth0      eth0  |    | br0          eth0 .60.11 ...  eth0 .60.200
//	 .50.2      .50.1 |    | .60.1
//
// Addresses are 10.N.0.x/24 and fdN::x/64. Nothing leads to 10.99.0.0/24 and fd99::/64 (load
// balancer IPs), until nodes announce addresses to the router.
type Fleet struct {
	*Lab
	Client, Router, Server *Namespace
	Nodes                  []*Namespace
}

// Networks of a Fleet.
const (
	FleetClientNet = 50
	FleetNet       = 60
)

// Hosts on FleetNet.
const (
	FleetRouter    = 1
	FleetFirstNode = 11
	FleetServer    = 200
)

// NewFleet builds a Fleet of n nodes in a new lab.
func NewFleet(n int) (*Fleet, error) {
	lab, err := New()
	if err != nil {
		return nil, err
	}
	f := &Fleet{Lab: lab}
	if err := f.build(n); err != nil {
		return nil, errors.Join(err, lab.Close())
	}
	return f, nil
}

func (f *Fleet) build(nodes int) (err error) {
	for _, n := range []struct {
		to   **Namespace
		name string
	}{{&f.Client, "client"}, {&f.Router, "router"}, {&f.Server, "server"}} {
		if *n.to, err = f.Namespace(n.name); err != nil {
			return err
		}
	}
	err = Connect(End{Namespace: f.Client, Name: "eth0", Addrs: on(FleetClientNet, 2)},
		End{Namespace: f.Router, Name: "eth0", Addrs: on(FleetClientNet, 1)}, LinkConfig{})
	if err != nil {
		return err
	}
	ports, err := f.attach(nodes)
	if err != nil {
		return err
	}
	if err := f.Router.Bridge("br0", ports, on(FleetNet, FleetRouter)...); err != nil {
		return err
	}
	for _, key := range []string{
		"net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding",
		"net/ipv4/fib_multipath_hash_policy", "net/ipv6/fib_multipath_hash_policy", // by the 5-tuple
	} {
		if err := f.Router.SetSysctl(key, "1"); err != nil {
			return err
		}
	}
	return f.defaults()
}

// AddServer adds a server beside Server, on that host of FleetNet.
func (f *Fleet) AddServer(name string, host uint8) (*Namespace, error) {
	n, err := f.Namespace(name)
	if err != nil {
		return nil, err
	}
	if err := f.attachAs(n, name, host); err != nil {
		return nil, err
	}
	bridge, err := f.Router.link("br0")
	if err != nil {
		return nil, err
	}
	return n, errors.Join(f.Router.addPort(bridge, name), f.byRouter(n), n.settle())
}

// attachAs connects a namespace to the router, whose end gets the name port.
func (f *Fleet) attachAs(n *Namespace, port string, host uint8) error {
	return Connect(End{Namespace: n, Name: "eth0", Addrs: on(FleetNet, host)}, End{Namespace: f.Router, Name: port}, LinkConfig{})
}

// byRouter adds default routes by the router to a namespace on FleetNet.
func (f *Fleet) byRouter(n *Namespace) error {
	return errors.Join(n.AddRoute("eth0", any4, Host4(FleetNet, FleetRouter)), n.AddRoute("eth0", any6, Host6(FleetNet, FleetRouter)))
}

var any4, any6 = netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")

// attach connects server and nodes to the router, and returns the names of the router's ends.
func (f *Fleet) attach(nodes int) (ports []string, err error) {
	add := func(n *Namespace, port string, host uint8) error {
		ports = append(ports, port)
		return f.attachAs(n, port, host)
	}
	for i := range nodes {
		n, err := f.Namespace(fmt.Sprint("node", i+1))
		if err != nil {
			return nil, err
		}
		f.Nodes = append(f.Nodes, n)
		if err := add(n, n.Name(), uint8(FleetFirstNode+i)); err != nil {
			return nil, err
		}
	}
	return ports, add(f.Server, "server", FleetServer)
}

// defaults adds default routes by the router.
func (f *Fleet) defaults() error {
	errs := []error{
		f.Client.AddRoute("eth0", any4, Host4(FleetClientNet, 1)), f.Client.AddRoute("eth0", any6, Host6(FleetClientNet, 1)),
	}
	for _, n := range append([]*Namespace{f.Server}, f.Nodes...) {
		errs = append(errs, f.byRouter(n))
	}
	for _, n := range f.Namespaces() {
		errs = append(errs, n.settle())
	}
	return errors.Join(errs...)
}
