package hostveth

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

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
	return h.forwarding.enable6(KernelEnd)
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
	return h.forwarding.has6(KernelEnd)
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
