package netlab

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/safchain/ethtool"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/perf/netlab/patience"
)

// NICs names the environment variable with pairs of NICs, each joined by a wire: MAC
// addresses, as in "52:54:00:00:00:01=52:54:00:00:00:02,...". Links that ask for a wire then
// are such pairs instead of veth pairs. A NIC moves into the namespace of a lab, and the
// kernel returns it when the namespace ends.
const NICs = "WEIR_NICS"

// nicsBackWithin is how long the kernel may take to return NICs of a lab that has ended.
const nicsBackWithin = 30 * time.Second

// wires are taken by one lab after another.
var wires sync.Mutex

type nicPair [2]net.HardwareAddr

// nicPairs returns the pairs of the environment variable.
func nicPairs() ([]nicPair, error) { return parseNICs(os.Getenv(NICs)) }

func parseNICs(text string) ([]nicPair, error) {
	var pairs []nicPair
	if text == "" {
		return nil, nil
	}
	for item := range strings.SplitSeq(text, ",") {
		a, b, _ := strings.Cut(item, "=")
		var p nicPair
		var errs [2]error
		p[0], errs[0] = net.ParseMAC(a)
		p[1], errs[1] = net.ParseMAC(b)
		if err := errors.Join(errs[:]...); err != nil {
			return nil, fmt.Errorf("%s: %q is no pair of MAC addresses: %w", NICs, item, err)
		}
		pairs = append(pairs, p)
	}
	return pairs, nil
}

// connectNICs joins two namespaces by the first pair that is free.
func connectNICs(a, b End, cfg LinkConfig, pairs []nicPair) error {
	wires.Lock()
	defer wires.Unlock()
	home, err := netlink.NewHandle()
	if err != nil {
		return err
	}
	defer home.Close()
	links, err := freePair(home, pairs)
	if err != nil {
		return err
	}
	for i, e := range []End{a, b} {
		if err := e.take(home, links[i], cfg); err != nil {
			return fmt.Errorf("NIC %s as %s/%s: %w", links[i].Attrs().Name, e.Namespace.name, e.Name, err)
		}
	}
	return nil
}

// TakeNIC moves a NIC, by the address that it was made with, from the process's namespace
// into that of the end, and brings it up. It waits for a NIC that is not there yet.
func TakeNIC(e End, mac net.HardwareAddr, cfg LinkConfig) error {
	home, err := netlink.NewHandle()
	if err != nil {
		return err
	}
	defer home.Close()
	links, err := freePair(home, []nicPair{{mac, mac}})
	if err != nil {
		return err
	}
	if err := e.take(home, links[0], cfg); err != nil {
		return err
	}
	if err := e.Namespace.up(e.Name); err != nil {
		return err
	}
	for _, p := range e.Addrs {
		if err := e.Namespace.AddAddr(e.Name, p); err != nil {
			return err
		}
	}
	return e.Namespace.waitUp(e.Name)
}

// freePair waits until both NICs of a pair are in the process's namespace.
func freePair(home *netlink.Handle, pairs []nicPair) ([2]netlink.Link, error) {
	deadline := time.Now().Add(patience.For(nicsBackWithin))
	for {
		list, err := home.LinkList()
		if err != nil {
			return [2]netlink.Link{}, err
		}
		at := map[string]netlink.Link{}
		for _, l := range list {
			at[permanent(l).String()] = l
		}
		for _, p := range pairs {
			if x, y := at[p[0].String()], at[p[1].String()]; x != nil && y != nil {
				return [2]netlink.Link{x, y}, nil
			}
		}
		if time.Now().After(deadline) {
			return [2]netlink.Link{}, fmt.Errorf("%s: no pair of NICs is free", NICs)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// permanent is the address that a NIC was made with.
func permanent(l netlink.Link) net.HardwareAddr {
	if a := l.Attrs().PermHWAddr; len(a) > 0 {
		return a
	}
	return l.Attrs().HardwareAddr
}

// take moves a NIC into the end's namespace, with the settings of a new veth.
func (e End) take(home *netlink.Handle, l netlink.Link, cfg LinkConfig) error {
	mac, mtu := e.MAC, cfg.MTU
	if mac == nil {
		mac = permanent(l)
	}
	if mtu == 0 {
		mtu = 1500
	}
	// The name may exist in either namespace.
	unique := fmt.Sprintf("nic%d", l.Attrs().Index)
	err := errors.Join(home.LinkSetDown(l), home.LinkSetName(l, unique), home.LinkSetNsFd(l, int(e.Namespace.Handle())))
	if err != nil {
		return err
	}
	nl := e.Namespace.nl
	if l, err = e.Namespace.link(unique); err != nil {
		return err
	}
	if err := errors.Join(nl.LinkSetName(l, e.Name), nl.LinkSetHardwareAddr(l, mac), nl.LinkSetMTU(l, mtu)); err != nil {
		return err
	}
	err = e.Namespace.SetQueues(e.Name, max(cfg.Queues, 1))
	if cfg.Queues == 0 && errors.Is(err, unix.EOPNOTSUPP) {
		return nil // vmxnet3 has a queue for each CPU, and does not change that
	}
	return err
}

// SetQueues sets the number of receive and transmit queues of a NIC. A driver that cannot
// change it has a single queue.
func (n *Namespace) SetQueues(ifname string, queues int) error {
	err := n.Do(func() error {
		e, err := ethtool.NewEthtool()
		if err != nil {
			return err
		}
		defer e.Close()
		c, err := e.GetChannels(ifname)
		if err != nil {
			if queues == 1 {
				return nil
			}
			return err
		}
		if int(c.CombinedCount) == queues || c.MaxCombined == 0 && queues == 1 {
			return nil
		}
		c.CombinedCount = uint32(queues)
		_, err = e.SetChannels(ifname, c)
		return err
	})
	if err != nil {
		return fmt.Errorf("%d queues of %s/%s: %w", queues, n.name, ifname, err)
	}
	return nil
}

// SetChannels sets the numbers of receive and transmit queues of an interface whose driver
// counts them apart, such as veth. It has been made with the most that it can have.
func (n *Namespace) SetChannels(ifname string, rx, tx int) error {
	err := n.Do(func() error {
		e, err := ethtool.NewEthtool()
		if err != nil {
			return err
		}
		defer e.Close()
		c, err := e.GetChannels(ifname)
		if err != nil {
			return err
		}
		c.RxCount, c.TxCount = uint32(rx), uint32(tx)
		_, err = e.SetChannels(ifname, c)
		return err
	})
	if err != nil {
		return fmt.Errorf("%d receive and %d transmit queues of %s/%s: %w", rx, tx, n.name, ifname, err)
	}
	return nil
}
