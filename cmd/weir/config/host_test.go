package config

import (
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
)

// fakeHost is a machine with eth0, eth1, four CPUs and an empty /run.
func fakeHost(t *testing.T) Host {
	dir := t.TempDir()
	return Host{
		Interfaces: func() ([]HostInterface, error) {
			return []HostInterface{
				{Name: "lo", Kind: "device", Loopback: true, Addresses: prefixes("127.0.0.1/8")},
				{Name: "eth0", Kind: "device", Addresses: prefixes("192.0.2.10/24", "2001:db8::10/64")},
				{Name: "eth1", Kind: "device"},
			}, nil
		},
		DefaultRoutes: func() ([]string, error) { return []string{"eth0"}, nil },
		Addresses:     func() ([]netip.Addr, error) { return []netip.Addr{netip.MustParseAddr("192.0.2.10")}, nil },
		ReadFile: func(name string) ([]byte, error) {
			switch name {
			case "/proc/sys/net/ipv4/ip_local_port_range":
				return []byte("32768\t60999\n"), nil
			case "/proc/sys/net/ipv4/ip_local_reserved_ports":
				return []byte("8080\n"), nil
			}
			return nil, fs.ErrNotExist
		},
		Stat: func(name string) (fs.FileInfo, error) {
			switch name {
			case "/run", "/run/weir", "/etc/weir/manifests":
				return os.Stat(dir)
			case "/file":
				return os.Stat("/proc/self/status")
			}
			return nil, &fs.PathError{Op: "stat", Path: name, Err: fs.ErrNotExist}
		},
		CPUs: func() (CPUs, error) { return CPUs{0, 1, 2, 3}, nil },
	}
}

func TestCheckHost(t *testing.T) {
	for _, tt := range []struct {
		name string
		edit func(*Configuration, *Host)
		want string // "": nothing is wrong
	}{
		{"as documented", func(*Configuration, *Host) {}, ""},
		{"missing interface", func(c *Configuration, _ *Host) { c.Interfaces[1].Name = "eth9" },
			"weir.yaml:6: interfaces[1].name: interface eth9: no such interface (there are: lo, eth0, eth1)"},
		{"missing manifests", func(c *Configuration, _ *Host) { c.Discovery.Manifests.Path = "/nowhere" },
			"weir.yaml:5: discovery.manifests.path: /nowhere: file does not exist"},
		{"ephemeral ports", func(c *Configuration, h *Host) { h.ReadFile = ports("1024 65535", "8080"); c.SNAT.Addresses = nil },
			"weir.yaml:8: snat.ports: 61000-62000 overlaps the kernel's ephemeral ports 1024-65535: choose another range, or run sysctl -w net.ipv4.ip_local_reserved_ports=8080,61000-62000"},
		{"ephemeral ports reserved", func(c *Configuration, h *Host) {
			h.ReadFile = ports("1024 65535", "61000-61499,61500-62000")
			c.SNAT.Addresses = nil
		}, ""},
		{"ephemeral ports half reserved", func(c *Configuration, h *Host) {
			h.ReadFile = ports("1024 65535", "61000-61499")
			c.SNAT.Addresses = nil
		},
			"ip_local_reserved_ports=61000-61499,61000-62000"},
		{"ephemeral ports and addresses of Weir's own", func(_ *Configuration, h *Host) { h.ReadFile = ports("1024 65535", "") }, ""},
		{"ephemeral ports and an address of the host", func(c *Configuration, h *Host) {
			h.ReadFile = ports("1024 65535", "")
			c.SNAT.Addresses = []string{"192.0.2.10"}
		}, "snat.ports: 61000-62000 overlaps"},
		{"CPU that is not there", func(c *Configuration, _ *Host) { c.Workers.CPUs = CPUs{3, 4} },
			"weir.yaml:19: workers.cpus: CPU 4 is not among those that this process may use (0-3)"},
		{"more workers than CPUs", func(c *Configuration, _ *Host) { c.Workers = Workers{Count: 5} },
			"workers.count: 5 workers are more than the 4 CPUs that this process may use"},
		{"socket in no directory", func(c *Configuration, _ *Host) { c.Admin.Socket = "/nowhere/weir/weir.sock" },
			"admin.socket: /nowhere: file does not exist"},
		{"socket below a file", func(c *Configuration, _ *Host) { c.Admin.Socket = "/file/weir/weir.sock" },
			"admin.socket: /file is not a directory"},
		{"table is a directory", func(c *Configuration, _ *Host) { c.Conntrack.Path = "/run/weir" },
			"conntrack.path: /run/weir is a directory"},
		{"interfaces cannot be listed", func(_ *Configuration, h *Host) {
			h.Interfaces = func() ([]HostInterface, error) { return nil, errors.New("no netlink") }
		}, "interfaces: list the machine's interfaces: no netlink"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, h := valid(t), fakeHost(t)
			tt.edit(c, &h)
			got := c.CheckHost(h).Error()
			if tt.want == "" && got != "" || !strings.Contains(got, tt.want) {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			}
		})
	}
}

func ports(ephemeral, reserved string) func(string) ([]byte, error) {
	return func(name string) ([]byte, error) {
		if strings.HasSuffix(name, "ip_local_port_range") {
			return []byte(ephemeral + "\n"), nil
		}
		return []byte(reserved + "\n"), nil
	}
}

func TestSystemHostKnowsThisMachine(t *testing.T) {
	h := SystemHost()
	names, err := h.Interfaces()
	if err != nil || !slices.ContainsFunc(names, func(l HostInterface) bool { return l.Loopback && l.Name == "lo" }) {
		t.Errorf("interfaces: %v, %v", names, err)
	}
	if names, err := h.DefaultRoutes(); err != nil {
		t.Errorf("default routes: %v, %v", names, err)
	}
	if cpus, err := h.CPUs(); err != nil || len(cpus) == 0 {
		t.Errorf("CPUs: %v, %v", cpus, err)
	}
	if as, err := h.Addresses(); err != nil {
		t.Errorf("addresses: %v, %v", as, err)
	}
}
