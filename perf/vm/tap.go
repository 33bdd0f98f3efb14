package vm

import (
	"errors"
	"fmt"
	"strings"

	"github.com/vishvananda/netlink"

	"github.com/weirlb/weir/perf/netlab"
)

// tapQueues are the queues of a NIC on a tap. A hub has one.
const tapQueues = 2

// onTaps makes pairs of NICs with several queues, each pair on a bridge of taps in a network
// namespace of this machine. It needs root there.
func onTaps(model string) (n nics, err error) {
	lab, err := netlab.New()
	if err != nil {
		return n, fmt.Errorf("NICs with several queues are taps: %w", err)
	}
	n.close = lab.Close
	defer func() {
		if err != nil {
			err = errors.Join(err, lab.Close())
		}
	}()
	space, err := lab.Namespace("taps")
	if err != nil {
		return n, err
	}
	if err := space.Do(makeTaps); err != nil {
		return n, err
	}
	n.prefix = []string{"nsenter", "--net=" + space.Path()}
	var pairs []string
	for i := range 2 * nicPairs {
		id, mac := tapName(i), nicMAC(i)
		n.args = append(n.args, onTap(model, id, mac)...)
		if i%2 == 1 {
			pairs = append(pairs, nicMAC(i-1)+"="+mac)
		}
	}
	n.env = []string{netlab.NICs + "=" + strings.Join(pairs, ",")}
	return n, nil
}

func tapName(i int) string { return fmt.Sprintf("tap%d", i) }

// addTap makes a tap in the network namespace of this thread, up. It persists; the emulator opens the
// queues.
func addTap(name string) error {
	tap := &netlink.Tuntap{
		LinkAttrs: netlink.LinkAttrs{Name: name}, Mode: netlink.TUNTAP_MODE_TAP,
		Flags: netlink.TUNTAP_MULTI_QUEUE_DEFAULTS, Queues: tapQueues,
	}
	if err := netlink.LinkAdd(tap); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	for _, f := range tap.Fds {
		f.Close()
	}
	if err := netlink.LinkSetUp(tap); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// onTap is a NIC of a virtual machine on a tap.
func onTap(model, tap, mac string) []string {
	return []string{
		"-netdev", fmt.Sprintf("tap,id=%s,ifname=%[1]s,script=no,downscript=no,vhost=off,queues=%d", tap, tapQueues),
		// A vector for each ring, the control queue and changes of the configuration.
		"-device", fmt.Sprintf("%s,netdev=%s,mac=%s,mq=on,vectors=%d", model, tap, mac, 2*tapQueues+2),
	}
}

func makeTaps() error {
	for pair := range nicPairs {
		bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: fmt.Sprintf("pair%d", pair), MTU: 1500}}
		if err := errors.Join(netlink.LinkAdd(bridge), netlink.LinkSetUp(bridge)); err != nil {
			return fmt.Errorf("%s: %w", bridge.Name, err)
		}
		for _, i := range []int{2 * pair, 2*pair + 1} {
			if err := addTap(tapName(i)); err != nil {
				return err
			}
			tap, err := netlink.LinkByName(tapName(i))
			if err == nil {
				err = netlink.LinkSetMaster(tap, bridge)
			}
			if err != nil {
				return fmt.Errorf("%s: %w", tapName(i), err)
			}
		}
	}
	return nil
}
