// Package uppair makes the veth pairs by which packets reach the packet loop from an
// interface with a TCX program.
//
//	eth0 --TCX--> weir-up3 ===veth=== weir-dn3 --XDP--> AF_XDP sockets
//	              the program         the steering program
//	              redirects here      is attached here
//
// AF_XDP sockets need XDP on their interface, and XDP on a veth ends the segmentation
// offload of its peer. So the interface itself has no XDP program; the pair's inner end
// has. The kernel cuts a large packet into packets of the MTU when it enters the pair, and
// leaves a partial checksum partial.
//
// The ends have no addresses and speak no protocol: nothing but redirected packets enters.
package uppair

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/lb/vethpair"
)

// Prefixes of the names of the ends; a slot's number follows.
const (
	outerPrefix = "weir-up"
	innerPrefix = "weir-dn"
)

// addrGenNone is IN6_ADDR_GEN_MODE_NONE: the kernel makes no link-local address.
const addrGenNone = 1

// Config describes a pair.
type Config struct {
	Slot   int // number of the interface in the steering program
	Queues int // receive queues of the inner end
	MTU    int // of the interface
}

// Pair is a pair that is up.
type Pair struct {
	ends  vethpair.Pair
	mtu   int
	Outer int    // interface index of the end that the TCX program redirects to
	Inner int    // interface index of the end that the AF_XDP sockets are bound to
	Name  string // of the inner end
}

func names(slot int) [2]string {
	n := strconv.Itoa(slot)
	return [2]string{outerPrefix + n, innerPrefix + n}
}

// Open makes the pair of a slot, or takes over that of an earlier process, in the network
// namespace of the calling thread. On error nothing is left behind.
func Open(cfg Config) (_ *Pair, err error) {
	ends, err := vethpair.Make(vethpair.Config{Names: names(cfg.Slot), MTU: cfg.MTU, Queues: cfg.Queues})
	if err != nil {
		return nil, err
	}
	p := &Pair{
		ends: ends, mtu: cfg.MTU, Outer: ends[0].Attrs().Index, Inner: ends[1].Attrs().Index,
		Name: ends[1].Attrs().Name,
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.Close())
		}
	}()
	if ends.Fits(vethpair.Config{MTU: cfg.MTU, Queues: cfg.Queues}) && silent(ends) {
		return p, nil // connections may be waiting for this process
	}
	for _, l := range ends {
		if err := silence(l); err != nil {
			return nil, fmt.Errorf("%s: %w", l.Attrs().Name, err)
		}
	}
	if err := ends.SetUp(cfg.MTU); err != nil {
		return nil, err
	}
	return p, nil
}

// silent reports whether silence would leave the ends of a pair as they are. Where that cannot be
// found out, silence shows why.
func silent(ends vethpair.Pair) bool {
	for _, l := range ends {
		name := l.Attrs().Name
		if l.Attrs().RawFlags&unix.IFF_NOARP == 0 {
			return false
		}
		if same, err := vethpair.HasOffloads(name, offloads); err != nil || !same {
			return false
		}
		mode, err := os.ReadFile("/proc/sys/net/ipv6/conf/" + name + "/addr_gen_mode")
		if err != nil && !errors.Is(err, fs.ErrNotExist) || // it does not where there is no IPv6
			err == nil && strings.TrimSpace(string(mode)) != strconv.Itoa(addrGenNone) {
			return false
		}
	}
	return true
}

// offloads of both ends. Insertion by the device would take VLAN tags out of the bytes of a packet.
var offloads = map[string]bool{"tx-vlan-hw-insert": false, "tx-vlan-stag-hw-insert": false, vethpair.FragmentLists: false}

// silence makes an end of a pair that carries nothing but redirected packets: it sends
// neither ARP nor neighbor discovery, and keeps VLAN tags in the bytes of a packet, where
// XDP finds them.
func silence(l netlink.Link) error {
	if err := netlink.LinkSetARPOff(l); err != nil {
		return fmt.Errorf("switch off ARP: %w", err)
	}
	if err := netlink.LinkSetIP6AddrGenMode(l, addrGenNone); err != nil &&
		!errors.Is(err, unix.EAFNOSUPPORT) { // a kernel without IPv6
		return fmt.Errorf("switch off IPv6 addresses: %w", err)
	}
	return vethpair.SetOffloads(l.Attrs().Name, offloads)
}

// Close removes the pair from the host.
func (p *Pair) Close() error { return p.ends.Remove() }

// Cleanup removes the pairs of every slot from the network namespace of the calling
// thread: the remains of a killed process. Foreign interfaces stay, without an error.
func Cleanup() error {
	links, err := netlink.LinkList()
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return fmt.Errorf("list interfaces: %w", err)
	}
	var errs []error
	for _, l := range links {
		slot, err := strconv.Atoi(strings.TrimPrefix(l.Attrs().Name, outerPrefix))
		if err != nil || slot < 0 || names(slot)[0] != l.Attrs().Name {
			continue
		}
		if ends, found, err := vethpair.Find(names(slot)); err == nil && found {
			errs = append(errs, ends.Remove())
		}
	}
	return errors.Join(errs...)
}
