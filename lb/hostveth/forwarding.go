package hostveth

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// forwarding has the kernel forward packets that arrive on interfaces, by sysctls of the host that
// are put back at the end. Calls must not overlap.
type forwarding struct {
	sysctls sysctls
	saved   *savedSysctls
	log     *slog.Logger
	ipv6    bool
	on      map[int]bool // by interface index
}

// add has the kernel forward packets that arrive on an interface.
func (f *forwarding) add(ifindex int) error {
	if f.on[ifindex] {
		return nil
	}
	dev, err := netlink.LinkByIndex(ifindex)
	if err != nil {
		return fmt.Errorf("host veth: interface %d: %w", ifindex, err)
	}
	if dev.Attrs().Flags&unix.IFF_LOOPBACK == 0 && dev.Attrs().Name != KernelEnd {
		if err := f.enable(dev.Attrs().Name); err != nil {
			return err
		}
	}
	f.on[ifindex] = true
	return nil
}

func (f *forwarding) enable(name string) error {
	if err := f.change("net/ipv4/conf/"+name+"/forwarding", "1"); err != nil {
		return err
	}
	return f.enable6(name)
}

// off lists the interfaces on which another program has switched forwarding off again.
// Interfaces that are gone are forgotten.
func (f *forwarding) off() (names []string, err error) {
	for ifindex := range f.on {
		dev, err := netlink.LinkByIndex(ifindex)
		if errors.As(err, new(netlink.LinkNotFoundError)) {
			delete(f.on, ifindex)
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("host veth: interface %d: %w", ifindex, err)
		}
		name := dev.Attrs().Name
		if dev.Attrs().Flags&unix.IFF_LOOPBACK != 0 || name == KernelEnd {
			continue
		}
		now, err := f.sysctls.read("net/ipv4/conf/" + name + "/forwarding")
		six := true
		if err == nil {
			six, err = f.has6(name)
		}
		if err != nil {
			return nil, err
		}
		if now != "1" || !six {
			names = append(names, name)
		}
	}
	return names, nil
}

// check reports whether forwarding is on where it was switched on.
func (f *forwarding) check() (bool, error) {
	off, err := f.off()
	return len(off) == 0, err
}

// restore switches it on again.
func (f *forwarding) restore() error {
	off, err := f.off()
	errs := []error{err}
	for _, name := range off {
		errs = append(errs, f.enable(name))
	}
	return errors.Join(errs...)
}

// enable6 switches IPv6 forwarding on for packets that arrive on an
// interface. Before Linux 6.17 (net.ipv6.conf.X.force_forwarding) IPv6 can only
// be forwarded by the whole host.
func (f *forwarding) enable6(name string) error {
	if !f.ipv6 {
		return nil
	}
	conf := "net/ipv6/conf/" + name + "/"
	if _, err := f.sysctls.read(conf + "forwarding"); errors.Is(err, fs.ErrNotExist) {
		return nil // no IPv6, or not on this interface
	}
	if _, err := f.sysctls.read(conf + "force_forwarding"); err == nil {
		return f.change(conf+"force_forwarding", "1")
	}
	return f.enableAll6()
}

// has6 reports whether enable6 would change nothing.
func (f *forwarding) has6(name string) (bool, error) {
	if !f.ipv6 {
		return true, nil
	}
	conf := "net/ipv6/conf/" + name + "/"
	if _, err := f.sysctls.read(conf + "forwarding"); errors.Is(err, fs.ErrNotExist) {
		return true, nil
	}
	now, err := f.sysctls.read(conf + "force_forwarding")
	if errors.Is(err, fs.ErrNotExist) {
		now, err = f.sysctls.read("net/ipv6/conf/all/forwarding")
	}
	return now == "1", err
}

// enableAll6 makes a router of the host. The kernel then sets `forwarding` of
// every interface, which is saved so that those which had it keep it at the end, and takes
// no more router advertisements where accept_ra is 1: that would cost the host the default
// route, so it becomes 2.
func (f *forwarding) enableAll6() error {
	const dir = "net/ipv6/conf/"
	all, err := f.sysctls.read(dir + "all/forwarding")
	if err != nil || all == "1" {
		return err
	}
	names, err := f.sysctls.list(dir)
	if err != nil {
		return err
	}
	for _, name := range names {
		if name == "all" || name == KernelEnd || name == XDPEnd {
			continue
		}
		forwarding, err := f.sysctls.read(dir + name + "/forwarding")
		if err != nil {
			return err
		}
		if forwarding != "0" {
			if err := f.saved.save(dir+name+"/forwarding", forwarding, ""); err != nil {
				return err
			}
			continue
		}
		if ra, err := f.sysctls.read(dir + name + "/accept_ra"); err == nil && ra == "1" {
			if err := f.change(dir+name+"/accept_ra", "2"); err != nil {
				return err
			}
		}
	}
	return f.change(dir+"all/forwarding", "1")
}

// change sets a sysctl of the host and saves the old value first.
func (f *forwarding) change(key, value string) error {
	old, err := f.sysctls.read(key)
	if err != nil {
		return err
	}
	if old == value {
		return nil
	}
	if err := f.saved.save(key, old, value); err != nil {
		return err
	}
	f.log.Info("sysctl changed, to be put back at the end", "key", strings.ReplaceAll(key, "/", "."), "from", old, "to", value)
	return f.sysctls.write(key, value)
}
