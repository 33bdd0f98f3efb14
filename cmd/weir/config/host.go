package config

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Host is the interface of CheckHost to the machine.
type Host struct {
	// Interfaces are the network interfaces.
	Interfaces func() ([]HostInterface, error)
	// DefaultRoutes are the names of those that default routes lead to.
	DefaultRoutes func() ([]string, error)
	// Addresses are the addresses of all of them.
	Addresses func() ([]netip.Addr, error)
	// ReadFile reads a file below /proc.
	ReadFile func(name string) ([]byte, error)
	// Stat tells whether a path is there.
	Stat func(name string) (fs.FileInfo, error)
	// CPUs are those on which this process may run.
	CPUs func() (CPUs, error)
}

// SystemHost is the machine, as seen from the calling process's network
// namespace.
func SystemHost() Host {
	return Host{
		Interfaces:    hostInterfaces,
		DefaultRoutes: defaultRoutes,
		Addresses:     interfaceAddresses,
		ReadFile:      os.ReadFile,
		Stat:          os.Stat,
		CPUs:          allowedCPUs,
	}
}

// CheckHost judges the configuration against the machine and returns all
// that is wrong. It is worth calling also when Validate found something. It finds
// the interfaces of entries by cidr and defaultRoute, which Attached returns from then on;
// a configuration of Flags.Resume has these already.
func (c *Configuration) CheckHost(h Host) Errors {
	r := report{origin: c.origin}
	if c.resumed {
		checkAttached(c, &r, h)
	} else {
		resolveInterfaces(c, &r, h)
	}
	checkManifests(c, &r, h)
	checkKubeconfig(c, &r, h)
	checkEphemeralPorts(c, &r, h)
	checkDirectories(c, &r, h)
	checkCPUs(c, &r, h)
	return r.errs
}

func checkManifests(c *Configuration, r *report, h Host) {
	m := c.Discovery.Manifests
	if m == nil || m.Path == "" {
		return
	}
	if _, err := h.Stat(m.Path); err != nil {
		r.addf("discovery.manifests.path", "%v", pathError(m.Path, err))
	}
}

func checkKubeconfig(c *Configuration, r *report, h Host) {
	k := c.Discovery.Kubernetes
	if k == nil || k.Kubeconfig == "" {
		return
	}
	if _, err := h.Stat(k.Kubeconfig); err != nil {
		r.addf("discovery.kubernetes.kubeconfig", "%v", pathError(k.Kubeconfig, err))
	}
}

// checkEphemeralPorts compares snat.ports with the ports that the kernel
// gives to the host's own connections: the answers of those would be taken
// for Weir's. It does not matter when every SNAT address is Weir's own.
func checkEphemeralPorts(c *Configuration, r *report, h Host) {
	if own, err := h.Addresses(); err == nil && len(c.SNAT.Addresses) > 0 {
		shared := slices.ContainsFunc(c.SNATAddresses(), func(a netip.Addr) bool { return slices.Contains(own, a) })
		if !shared {
			return
		}
	}
	data, err := h.ReadFile("/proc/sys/net/ipv4/ip_local_port_range")
	if err != nil {
		r.addf("snat.ports", "read the kernel's ephemeral ports: %v", err)
		return
	}
	var lo, hi uint16
	if _, err := fmt.Sscan(string(data), &lo, &hi); err != nil {
		r.addf("snat.ports", "read the kernel's ephemeral ports %q: %v", bytes.TrimSpace(data), err)
		return
	}
	kernel, ports := PortRange{lo, hi}, c.SNAT.Range()
	if !kernel.Overlaps(ports) {
		return
	}
	reserved, _ := h.ReadFile("/proc/sys/net/ipv4/ip_local_reserved_ports") // absent: none
	both := PortRange{max(kernel.Lo, ports.Lo), min(kernel.Hi, ports.Hi)}
	if covers(string(reserved), both) {
		return
	}
	r.addf("snat.ports", "%s overlaps the kernel's ephemeral ports %s", ports, kernel)
	r.errs[len(r.errs)-1].Mend = "choose another range, or run sysctl -w net.ipv4.ip_local_reserved_ports=" + withReserved(string(reserved), both)
}

// covers tells whether the ports of r all stand in reserved, a list such as
// "8080,61000-65535" (Documentation/networking/ip-sysctl.rst).
func covers(reserved string, r PortRange) bool {
	var taken [1 << 16]bool
	for part := range strings.SplitSeq(strings.TrimSpace(reserved), ",") {
		var p PortRange
		if p.Set(part) != nil {
			continue
		}
		for n := int(p.Lo); n <= int(p.Hi); n++ {
			taken[n] = true
		}
	}
	for n := int(r.Lo); n <= int(r.Hi); n++ {
		if !taken[n] {
			return false
		}
	}
	return true
}

func withReserved(reserved string, r PortRange) string {
	if s := strings.TrimSpace(reserved); s != "" {
		return s + "," + r.String()
	}
	return r.String()
}

// checkDirectories looks for the nearest existing parent of the directories that Weir will
// create: a missing last directory is created at the start, more is probably
// a mistake.
func checkDirectories(c *Configuration, r *report, h Host) {
	for _, f := range []struct{ path, file string }{
		{"admin.socket", c.Admin.Socket},
		{"conntrack.path", c.Conntrack.Path},
	} {
		if !filepath.IsAbs(f.file) {
			continue // empty, or reported by Validate
		}
		if info, err := h.Stat(f.file); err == nil && info.IsDir() {
			r.addf(f.path, "%s is a directory", f.file)
			continue
		}
		parent := filepath.Dir(filepath.Dir(f.file))
		if info, err := h.Stat(parent); err != nil {
			r.addf(f.path, "%v", pathError(parent, err))
		} else if !info.IsDir() {
			r.addf(f.path, "%s is not a directory", parent)
		}
	}
}

func checkCPUs(c *Configuration, r *report, h Host) {
	allowed, err := h.CPUs()
	if err != nil {
		r.addf("workers.cpus", "ask for the CPUs of this process: %v", err)
		return
	}
	for _, n := range c.Workers.CPUs {
		if !slices.Contains(allowed, n) {
			r.addf("workers.cpus", "CPU %d is not among those that this process may use (%s)", n, allowed)
		}
	}
	if n := int(c.Workers.Count); c.Workers.CPUs.IsAuto() && n > len(allowed) {
		r.addf("workers.count", "%d workers are more than the %d CPUs that this process may use", n, len(allowed))
	}
}

// pathError is err without the name of the system call.
func pathError(path string, err error) error {
	var pe *fs.PathError
	if errors.As(err, &pe) {
		return fmt.Errorf("%s: %w", pe.Path, pe.Err)
	}
	return fmt.Errorf("%s: %w", path, err)
}

func interfaceAddresses() ([]netip.Addr, error) {
	all, err := net.InterfaceAddrs()
	if err != nil {
		return nil, err
	}
	var out []netip.Addr
	for _, a := range all {
		if p, err := netip.ParsePrefix(a.String()); err == nil {
			out = append(out, p.Addr())
		}
	}
	return out, nil
}

// allowedCPUs reads /proc/self/status rather than asking the scheduler for
// the calling thread, which may itself be pinned.
func allowedCPUs() (CPUs, error) {
	data, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(data)) {
		if list, ok := strings.CutPrefix(line, "Cpus_allowed_list:"); ok {
			var c CPUs
			if err := c.Set(strings.TrimSpace(list)); err != nil {
				return nil, err
			}
			return c, nil
		}
	}
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return nil, os.NewSyscallError("sched_getaffinity", err)
	}
	var c CPUs
	for i := 0; len(c) < set.Count() && i <= maxCPU; i++ {
		if set.IsSet(i) {
			c = append(c, i)
		}
	}
	return c, nil
}
