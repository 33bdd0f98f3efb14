// Package vethpair makes veth pairs of Weir's own, and finds those of an earlier process.
//
// A pair is Weir's if its two ends have the two names. An interface of either name that is
// not an end of such a pair is foreign: it is reported, and left alone.
package vethpair

import (
	"crypto/rand"
	"errors"
	"fmt"
	"net"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// ErrForeign is wrapped by the error about an interface that has a name of Weir's and is
// no end of a pair of Weir's.
var ErrForeign = errors.New("is not Weir's pair; rename or remove it")

// Config describes a pair.
type Config struct {
	Names  [2]string
	MTU    int // of both ends, 0: the kernel's default
	Queues int // of both ends, in both directions
}

// Pair is the two ends, in the order of Config.Names.
type Pair [2]netlink.Link

// Find looks for a pair by the names of its ends. found is false without an error when no
// interface has either name.
func Find(names [2]string) (p Pair, found bool, err error) {
	for i, name := range names {
		if p[i], err = linkNamed(name); err != nil {
			return Pair{}, false, err
		}
	}
	switch {
	case p[0] == nil && p[1] == nil:
		return Pair{}, false, nil
	case p[0] == nil || p[1] == nil || p[0].Type() != "veth" ||
		p[0].Attrs().ParentIndex != p[1].Attrs().Index:
		return Pair{}, false, fmt.Errorf("there is an interface %s or %s that %w", names[0], names[1], ErrForeign)
	}
	return p, true, nil
}

// Make returns the pair of an earlier process if it has as many queues, and else makes
// one. The ends of a new pair are down.
func Make(cfg Config) (Pair, error) {
	p, found, err := Find(cfg.Names)
	if err != nil {
		return Pair{}, err
	}
	if found {
		if p.hasQueues(cfg.Queues) {
			return p, nil
		}
		if err := p.Remove(); err != nil {
			return Pair{}, err
		}
	}

	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU = cfg.Names[0], cfg.MTU
	attrs.NumTxQueues, attrs.NumRxQueues = cfg.Queues, cfg.Queues
	// Addresses given at the start are kept: udev replaces random ones a
	// moment later (MACAddressPolicy=persistent), when they are in use already.
	attrs.HardwareAddr = randomMAC()
	pair := netlink.NewVeth(attrs)
	pair.PeerName, pair.PeerMTU, pair.PeerHardwareAddr = cfg.Names[1], uint32(cfg.MTU), randomMAC()
	pair.PeerNumTxQueues, pair.PeerNumRxQueues = uint32(cfg.Queues), uint32(cfg.Queues)
	if err := netlink.LinkAdd(pair); err != nil {
		return Pair{}, fmt.Errorf("make the pair %s, %s: %w", cfg.Names[0], cfg.Names[1], err)
	}
	p, found, err = Find(cfg.Names)
	if err == nil && !found {
		err = fmt.Errorf("the pair %s, %s is gone as soon as it was made", cfg.Names[0], cfg.Names[1])
	}
	return p, err
}

// Remove deletes the pair. It is no error if it is gone.
func (p Pair) Remove() error {
	if p[0] == nil {
		return nil
	}
	if err := netlink.LinkDel(p[0]); err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("remove %s: %w", p[0].Attrs().Name, err)
	}
	return nil
}

// SetUp gives both ends an MTU, unless it is 0, and brings them up.
func (p Pair) SetUp(mtu int) error {
	for _, l := range p {
		if mtu > 0 { // l may be older than a change by another program
			if err := netlink.LinkSetMTU(l, mtu); err != nil {
				return fmt.Errorf("%s: MTU %d: %w", l.Attrs().Name, mtu, err)
			}
		}
		if err := netlink.LinkSetUp(l); err != nil {
			return fmt.Errorf("%s: bring up: %w", l.Attrs().Name, err)
		}
	}
	return nil
}

// Fits reports whether Make and SetUp with cfg would leave the pair as it is.
func (p Pair) Fits(cfg Config) bool {
	for _, l := range p {
		if l == nil || l.Attrs().RawFlags&unix.IFF_UP == 0 || cfg.MTU > 0 && l.Attrs().MTU != cfg.MTU {
			return false
		}
	}
	return p.hasQueues(cfg.Queues)
}

// hasQueues reports whether both ends have so many queues in both directions.
func (p Pair) hasQueues(n int) bool {
	for _, l := range p {
		if l.Type() != "veth" || l.Attrs().NumRxQueues != n || l.Attrs().NumTxQueues != n {
			return false
		}
	}
	return true
}

// linkNamed is nil without an error when there is no such link.
func linkNamed(name string) (netlink.Link, error) {
	l, err := netlink.LinkByName(name)
	if _, none := err.(netlink.LinkNotFoundError); none { //nolint:errorlint // never wrapped
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look for interface %s: %w", name, err)
	}
	return l, nil
}

// randomMAC is a unicast address that is locally administered (IEEE 802).
func randomMAC() net.HardwareAddr {
	m := make(net.HardwareAddr, 6)
	_, _ = rand.Read(m) // never fails
	m[0] = m[0]&^1 | 2
	return m
}
