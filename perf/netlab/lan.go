package netlab

import (
	"errors"
	"fmt"
)

// LAN is hosts on a link without a router:
//
//	client, server, node1 ... nodeN ---- br0 (switch)
//
// Addresses are 10.70.0.x/24 and fd70::x/64. The switch has a port for each host, of the same name.
type LAN struct {
	*Lab
	Switch, Client, Server *Namespace
	Nodes                  []*Namespace
}

// LANNet is the network of a LAN.
const LANNet = 70

// Hosts on LANNet.
const (
	LANClient    = 2
	LANFirstNode = 11
	LANServer    = 200
)

// NewLAN builds a LAN of n nodes in a new lab.
func NewLAN(n int) (*LAN, error) {
	lab, err := New()
	if err != nil {
		return nil, err
	}
	l := &LAN{Lab: lab}
	if err := l.build(n); err != nil {
		return nil, errors.Join(err, lab.Close())
	}
	return l, nil
}

func (l *LAN) build(nodes int) (err error) {
	if l.Switch, err = l.Namespace("switch"); err != nil {
		return err
	}
	if err := l.Switch.Bridge("br0", nil); err != nil {
		return err
	}
	if l.Client, err = l.AddHost("client", LANClient); err != nil {
		return err
	}
	if l.Server, err = l.AddHost("server", LANServer); err != nil {
		return err
	}
	for i := range nodes {
		n, err := l.AddHost(fmt.Sprint("node", i+1), uint8(LANFirstNode+i))
		if err != nil {
			return err
		}
		l.Nodes = append(l.Nodes, n)
	}
	return nil
}

// AddHost adds a host with a port of the switch.
func (l *LAN) AddHost(name string, host uint8) (*Namespace, error) {
	n, err := l.Namespace(name)
	if err != nil {
		return nil, err
	}
	err = Connect(End{Namespace: n, Name: "eth0", Addrs: on(LANNet, host)}, End{Namespace: l.Switch, Name: name}, LinkConfig{})
	if err != nil {
		return nil, err
	}
	return n, errors.Join(l.AddPort(name), n.settle())
}

// AddPort makes an interface of the switch's namespace a port of the switch.
func (l *LAN) AddPort(name string) error {
	bridge, err := l.Switch.link("br0")
	if err != nil {
		return err
	}
	return l.Switch.addPort(bridge, name)
}
