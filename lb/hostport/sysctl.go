package hostport

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// settings are those of the pair itself: they go with it and need no journal.
func (h *HostPort) settings() error {
	type setting struct {
		key, value string
		optional   bool // newer kernels only, or without IPv6
	}
	list := []setting{
		// Weir's end is not the kernel's business: when Weir is away, what
		// arrives there must not be taken for traffic to be forwarded.
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
	for _, s := range list {
		if err := h.sysctls.write(s.key, s.value); err != nil && !(s.optional && errors.Is(err, fs.ErrNotExist)) {
			return err
		}
	}
	if h.cfg.Prefix6.IsValid() {
		return h.forward6(KernelEnd)
	}
	return nil
}

// Forward lets the kernel forward answers that arrive on an interface, since
// endpoints lie behind it. ifindex is one of the calling thread's namespace;
// loopback and the host port need nothing.
func (h *HostPort) Forward(ifindex int) error {
	if h.forward[ifindex] {
		return nil
	}
	dev, err := netlink.LinkByIndex(ifindex)
	if err != nil {
		return fmt.Errorf("host port: interface %d: %w", ifindex, err)
	}
	name := dev.Attrs().Name
	if dev.Attrs().Flags&unix.IFF_LOOPBACK == 0 && name != KernelEnd {
		if err := h.change("net/ipv4/conf/"+sysctlName(name)+"/forwarding", "1"); err != nil {
			return err
		}
		if h.cfg.Prefix6.IsValid() {
			if err := h.forward6(name); err != nil {
				return err
			}
		}
	}
	h.forward[ifindex] = true
	return nil
}

// forward6 switches IPv6 forwarding on for packets that arrive on an
// interface. Before Linux 6.17 (net.ipv6.conf.X.force_forwarding) IPv6 can only
// be forwarded by the whole host.
func (h *HostPort) forward6(name string) error {
	key := "net/ipv6/conf/" + sysctlName(name) + "/force_forwarding"
	if _, err := h.sysctls.read(key); err == nil {
		return h.change(key, "1")
	}
	if _, err := h.sysctls.read("net/ipv6/conf/all/forwarding"); err != nil {
		return nil // no IPv6
	}
	return h.change("net/ipv6/conf/all/forwarding", "1")
}

// change sets a sysctl of the host's own and notes its old value first.
func (h *HostPort) change(key, value string) error {
	old, err := h.sysctls.read(key)
	if err != nil {
		return err
	}
	if old == value {
		return nil
	}
	if err := h.journal.note(key, old); err != nil {
		return err
	}
	h.log.Info("sysctl changed, to be put back at the end", "key", strings.ReplaceAll(key, "/", "."), "from", old, "to", value)
	return h.sysctls.write(key, value)
}

// sysctlName is an interface's name as a directory of /proc/sys.
func sysctlName(iface string) string { return iface }

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

// journal holds the old values of what was changed, in a file, so that they
// can be put back also after a crash. An entry that is there already is kept:
// the value that was read since is Weir's own.
type journal struct {
	path    string
	netns   uint64
	sysctls sysctls
	Old     []entry `json:"old"`
}

type entry struct {
	Key   string `json:"key"`
	Value string `json:"value"`
	// NetNS is the inode of the network namespace that it was changed in.
	NetNS uint64 `json:"netns"`
}

func openJournal(dir string, s sysctls) (*journal, error) {
	j := &journal{path: filepath.Join(dir, "sysctl.json"), sysctls: s}
	var st unix.Stat_t
	if err := unix.Stat("/proc/thread-self/ns/net", &st); err != nil {
		return nil, fmt.Errorf("network namespace: %w", err)
	}
	j.netns = st.Ino
	b, err := os.ReadFile(j.path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return j, nil
	case err != nil:
		return nil, fmt.Errorf("journal of changed settings: %w", err)
	}
	if err := json.Unmarshal(b, j); err != nil {
		// Never a reason not to start; the old values are lost, and that is said.
		return j, os.Rename(j.path, j.path+".bad")
	}
	return j, nil
}

// note adds an old value and writes the journal to disk.
func (j *journal) note(key, value string) error {
	if slices.ContainsFunc(j.Old, func(e entry) bool { return e.Key == key && e.NetNS == j.netns }) {
		return nil
	}
	j.Old = append(j.Old, entry{key, value, j.netns})
	return j.write()
}

func (j *journal) write() error {
	b, err := json.MarshalIndent(j, "", "  ")
	if err == nil {
		if err = os.MkdirAll(filepath.Dir(j.path), 0o755); err == nil {
			tmp := j.path + ".new"
			if err = os.WriteFile(tmp, b, 0o600); err == nil {
				err = os.Rename(tmp, j.path)
			}
		}
	}
	if err != nil {
		return fmt.Errorf("journal of changed settings: %w", err)
	}
	return nil
}

// restore puts all old values back, the last changed first, and removes the
// journal. An interface that is gone took its settings along.
func (j *journal) restore() error {
	if j == nil || len(j.Old) == 0 {
		return nil
	}
	var errs []error
	for _, e := range slices.Backward(j.Old) {
		if e.NetNS != j.netns {
			continue
		}
		if err := j.sysctls.write(e.Key, e.Value); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	j.Old = nil
	if err := os.Remove(j.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
