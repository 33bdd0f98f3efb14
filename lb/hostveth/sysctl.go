package hostveth

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// pairSysctl is a sysctl of the pair itself.
type pairSysctl struct {
	key, value string
	optional   bool // newer kernels only, or without IPv6
}

// pairSysctls go with the pair and need no journal.
var pairSysctls = []pairSysctl{
	// Weir's end is not the kernel's: when Weir is away, the kernel must not forward
	// packets that arrive there.
	{"net/ipv4/conf/" + XDPEnd + "/forwarding", "0", false},
	{"net/ipv4/conf/" + XDPEnd + "/arp_ignore", "8", false},
	{"net/ipv6/conf/" + XDPEnd + "/disable_ipv6", "1", true},
	// Answers to a frontend's client come from an address that is routed
	// elsewhere: loose mode. The kernel takes the larger of this and
	// `all`, which stays as it is.
	{"net/ipv4/conf/" + KernelEnd + "/rp_filter", "2", false},
	{"net/ipv4/conf/" + KernelEnd + "/forwarding", "1", false},
	{"net/ipv4/conf/" + KernelEnd + "/send_redirects", "0", false},
	// Quiet: no autoconfiguration, no duplicate detection, no link-local
	// address whose multicast would only be dropped by the workers.
	{"net/ipv6/conf/" + KernelEnd + "/addr_gen_mode", "1", true},
	{"net/ipv6/conf/" + KernelEnd + "/accept_ra", "0", true},
	{"net/ipv6/conf/" + KernelEnd + "/accept_dad", "0", true},
	{"net/ipv6/conf/" + KernelEnd + "/router_solicitations", "0", true},
	{"net/ipv6/conf/" + KernelEnd + "/disable_ipv6", "0", true},
}

// setPairSysctls sets those of the pair itself.
func (h *Veth) setPairSysctls() error {
	for _, s := range pairSysctls {
		if err := h.sysctls.write(s.key, s.value); err != nil && !(s.optional && errors.Is(err, fs.ErrNotExist)) {
			return err
		}
	}
	if h.cfg.Prefix6.IsValid() {
		return h.enableForwarding6(KernelEnd)
	}
	return nil
}

// checkPairSysctls reports whether setPairSysctls would change nothing.
func (h *Veth) checkPairSysctls() (bool, error) {
	for _, s := range pairSysctls {
		now, err := h.sysctls.read(s.key)
		if s.optional && errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil || now != s.value {
			return false, err
		}
	}
	if !h.cfg.Prefix6.IsValid() {
		return true, nil
	}
	conf := "net/ipv6/conf/" + KernelEnd + "/"
	if _, err := h.sysctls.read(conf + "forwarding"); errors.Is(err, fs.ErrNotExist) {
		return true, nil
	}
	now, err := h.sysctls.read(conf + "force_forwarding")
	if errors.Is(err, fs.ErrNotExist) {
		now, err = h.sysctls.read("net/ipv6/conf/all/forwarding")
	}
	return now == "1", err
}

// EnableForwarding lets the kernel forward answers that arrive on an interface, since
// endpoints lie behind it. ifindex is of the calling thread's namespace;
// loopback and the host veth need nothing.
func (h *Veth) EnableForwarding(ifindex int) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.forwarding[ifindex] {
		return nil
	}
	dev, err := netlink.LinkByIndex(ifindex)
	if err != nil {
		return fmt.Errorf("host veth: interface %d: %w", ifindex, err)
	}
	name := dev.Attrs().Name
	if dev.Attrs().Flags&unix.IFF_LOOPBACK == 0 && name != KernelEnd {
		if err := h.changeSysctl("net/ipv4/conf/"+name+"/forwarding", "1"); err != nil {
			return err
		}
		if h.cfg.Prefix6.IsValid() {
			if err := h.enableForwarding6(name); err != nil {
				return err
			}
		}
	}
	h.forwarding[ifindex] = true
	return nil
}

// enableForwarding6 switches IPv6 forwarding on for packets that arrive on an
// interface. Before Linux 6.17 (net.ipv6.conf.X.force_forwarding) IPv6 can only
// be forwarded by the whole host.
func (h *Veth) enableForwarding6(name string) error {
	conf := "net/ipv6/conf/" + name + "/"
	if _, err := h.sysctls.read(conf + "forwarding"); errors.Is(err, fs.ErrNotExist) {
		return nil // no IPv6, or not on this interface
	}
	if _, err := h.sysctls.read(conf + "force_forwarding"); err == nil {
		return h.changeSysctl(conf+"force_forwarding", "1")
	}
	return h.enableForwardingAll6()
}

// enableForwardingAll6 makes a router of the host. The kernel then sets `forwarding` of
// every interface, which is saved so that those which had it keep it at the end, and takes
// no more router advertisements where accept_ra is 1: that would cost the host the default
// route, so it becomes 2.
func (h *Veth) enableForwardingAll6() error {
	const dir = "net/ipv6/conf/"
	all, err := h.sysctls.read(dir + "all/forwarding")
	if err != nil || all == "1" {
		return err
	}
	names, err := h.sysctls.list(dir)
	if err != nil {
		return err
	}
	for _, name := range names {
		if name == "all" || name == KernelEnd || name == XDPEnd {
			continue
		}
		forwarding, err := h.sysctls.read(dir + name + "/forwarding")
		if err != nil {
			return err
		}
		if forwarding != "0" {
			if err := h.saved.save(dir+name+"/forwarding", forwarding, ""); err != nil {
				return err
			}
			continue
		}
		if ra, err := h.sysctls.read(dir + name + "/accept_ra"); err == nil && ra == "1" {
			if err := h.changeSysctl(dir+name+"/accept_ra", "2"); err != nil {
				return err
			}
		}
	}
	return h.changeSysctl(dir+"all/forwarding", "1")
}

// changeSysctl sets a sysctl of the host and saves the old value first.
func (h *Veth) changeSysctl(key, value string) error {
	old, err := h.sysctls.read(key)
	if err != nil {
		return err
	}
	if old == value {
		return nil
	}
	if err := h.saved.save(key, old, value); err != nil {
		return err
	}
	h.log.Info("sysctl changed, to be put back at the end", "key", strings.ReplaceAll(key, "/", "."), "from", old, "to", value)
	return h.sysctls.write(key, value)
}

// sysctls is a directory of sysctls, ending in a slash. /proc/sys/net, also
// where it is mounted elsewhere, shows the network namespace of whoever reads it.
type sysctls string

// newSysctls: "" is /proc/sys.
func newSysctls(dir string) sysctls {
	if dir == "" {
		dir = "/proc/sys"
	}
	return sysctls(dir + "/")
}

func (s sysctls) read(key string) (string, error) {
	b, err := os.ReadFile(string(s) + key)
	if err != nil {
		return "", fmt.Errorf("read sysctl: %w", err)
	}
	return strings.TrimSpace(string(b)), nil
}

func (s sysctls) list(dir string) ([]string, error) {
	entries, err := os.ReadDir(string(s) + dir)
	if err != nil {
		return nil, fmt.Errorf("list sysctls: %w", err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names, nil
}

func (s sysctls) write(key, value string) error {
	if old, err := s.read(key); err == nil && old == value {
		return nil
	}
	f, err := os.OpenFile(string(s)+key, os.O_WRONLY, 0)
	if errors.Is(err, unix.EROFS) {
		return fmt.Errorf("set sysctl: %w: in a container mount the host's /proc/sys/net at /host/proc/sys/net and set WEIR_PROC_SYS=/host/proc/sys", err)
	}
	if err != nil {
		return fmt.Errorf("set sysctl: %w", err)
	}
	_, err = f.WriteString(value)
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("set sysctl %s to %s: %w", key, value, err)
	}
	return nil
}
