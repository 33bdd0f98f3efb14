package decap

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// device is the TUN device through which the kernel gets inner packets. It holds
// those of the served addresses that the node does not hold already, so that
// they go with it, however this process ends.
type device struct {
	fd   int
	name string
	// changed are sysctls beyond the device's own, with their old values.
	changed map[string]string
}

// openDevice makes the device, ready to be written to.
func openDevice(name string, addrs []netip.Addr) (_ *device, err error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("open /dev/net/tun: %w (`modprobe tun`; the kernel needs CONFIG_TUN)", err)
	}
	d := &device{fd: fd, name: name, changed: map[string]string{}}
	defer func() {
		if err != nil {
			err = errors.Join(err, d.Close())
		}
	}()
	req, err := unix.NewIfreq(name)
	if err != nil {
		return nil, fmt.Errorf("device %q: %w", name, err)
	}
	req.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, req); err != nil {
		return nil, fmt.Errorf("device %s: %w", name, err)
	}
	if err := d.settings(); err != nil {
		return nil, err
	}
	link, err := netlink.LinkByName(name)
	if err != nil {
		return nil, fmt.Errorf("device %s: %w", name, err)
	}
	// Nothing is ever sent by the device; arriving packets may have been reassembled from
	// fragments.
	if err := netlink.LinkSetMTU(link, 65535); err != nil {
		return nil, fmt.Errorf("device %s: set MTU: %w", name, err)
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return nil, fmt.Errorf("device %s: set up: %w", name, err)
	}
	return d, d.addAddresses(link, addrs)
}

// settings are those of the device itself, which go with it.
func (d *device) settings() error {
	for _, s := range []struct {
		key, value string
		optional   bool
	}{
		// Clients are reached by another interface: loose mode. The kernel
		// takes the larger of this and `all`.
		{"net/ipv4/conf/" + d.name + "/rp_filter", "2", false},
		// Packets that are not for this node stay here.
		{"net/ipv4/conf/" + d.name + "/forwarding", "0", false},
		{"net/ipv6/conf/" + d.name + "/disable_ipv6", "0", true},
		{"net/ipv6/conf/" + d.name + "/addr_gen_mode", "1", true},
		{"net/ipv6/conf/" + d.name + "/accept_ra", "0", true},
	} {
		if err := write(s.key, s.value); err != nil && !(s.optional && errors.Is(err, fs.ErrNotExist)) {
			return err
		}
	}
	return nil
}

// addAddresses puts the addresses that the node lacks on the device. Others on
// the network must not take the node for their holder: it answers ARP only for
// addresses of the interface that is asked, and asks with such ones. For IPv6
// the kernel does so of itself.
func (d *device) addAddresses(link netlink.Link, addrs []netip.Addr) error {
	have, err := netlink.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return fmt.Errorf("list addresses: %w", err)
	}
	held := map[netip.Addr]bool{}
	for _, a := range have {
		if ip, ok := netip.AddrFromSlice(a.IP); ok {
			held[ip.Unmap()] = true
		}
	}
	quiet := false
	for _, a := range addrs {
		quiet = quiet || a.Is4()
		if held[a] {
			continue
		}
		addr := &netlink.Addr{IPNet: &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())}}
		if a.Is6() {
			addr.Flags = unix.IFA_F_NODAD
		}
		if err := netlink.AddrAdd(link, addr); err != nil {
			return fmt.Errorf("add %v to %s: %w", a, d.name, err)
		}
	}
	if !quiet {
		return nil
	}
	return errors.Join(d.raise("net/ipv4/conf/all/arp_ignore", "1"), d.raise("net/ipv4/conf/all/arp_announce", "2"))
}

// raise sets a sysctl that is lower, to be put back at the end.
func (d *device) raise(key, value string) error {
	b, err := os.ReadFile("/proc/sys/" + key)
	if err != nil {
		return fmt.Errorf("read sysctl: %w", err)
	}
	old := strings.TrimSpace(string(b))
	if old >= value { // single digits
		return nil
	}
	if err := write(key, value); err != nil {
		return err
	}
	d.changed[key] = old
	return nil
}

func write(key, value string) error {
	if err := os.WriteFile("/proc/sys/"+key, []byte(value), 0); err != nil {
		return fmt.Errorf("set sysctl %s to %s: %w", key, value, err)
	}
	return nil
}

// Close removes the device with all addresses, and restores sysctls.
func (d *device) Close() error {
	errs := []error{unix.Close(d.fd)}
	for key, old := range d.changed {
		errs = append(errs, write(key, old))
	}
	return errors.Join(errs...)
}
