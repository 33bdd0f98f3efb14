package config

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
	"github.com/vishvananda/netlink"

	"github.com/weirlb/weir/lb/device"
)

// selecting is an entry with the defaults of a file.
func selecting(f Interface) Interface {
	f.Mode, f.TxChecksum, f.Hook = ModeAuto, TxChecksumAuto, HookAuto
	return f
}

func prefixes(list ...string) (out []netip.Prefix) {
	for _, s := range list {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

// node is a machine with interfaces of all kinds that selectors meet.
func node(t *testing.T) Host {
	h := fakeHost(t)
	h.Interfaces = func() ([]HostInterface, error) {
		return []HostInterface{
			{Name: "lo", Kind: "device", Up: true, Loopback: true, Addresses: prefixes("127.0.0.1/8", "192.0.2.99/32")},
			{Name: "eth0", Kind: "device", Up: true, Addresses: prefixes("192.0.2.10/24", "2001:db8::10/64", "fe80::10/64")},
			{Name: "bond0.7", Kind: "vlan", Up: true, Addresses: prefixes("10.7.0.1/16", "192.0.2.77/32")},
			{Name: "eth9", Kind: "device", Up: true, Addresses: prefixes("fe80::9/64")},
			{Name: "kube-ipvs0", Kind: "dummy", Addresses: prefixes("192.0.2.200/32")},
			{Name: "weir-host", Kind: "veth", Up: true, Addresses: prefixes("169.254.77.1/24", "10.200.0.1/24")},
		}, nil
	}
	h.DefaultRoutes = func() ([]string, error) { return []string{"eth0", "kube-ipvs0"}, nil }
	return h
}

func TestSelectorsFindInterfaces(t *testing.T) {
	const all = "lo 127.0.0.1/8 192.0.2.99/32 (left out), eth0 192.0.2.10/24 2001:db8::10/64 fe80::10/64, bond0.7 10.7.0.1/16 192.0.2.77/32, " +
		"eth9 fe80::9/64, kube-ipvs0 192.0.2.200/32 (left out), weir-host 169.254.77.1/24 10.200.0.1/24 (left out)"
	also := func(more ...HostInterface) func(*Host) {
		return func(h *Host) {
			list, err := h.Interfaces()
			h.Interfaces = func() ([]HostInterface, error) { return append(slices.Clone(list), more...), err }
		}
	}
	podVeth := HostInterface{Name: "veth7", Kind: "veth", Up: true, Addresses: prefixes("10.7.3.1/32", "2001:db8::7:1/128", "fe80::7/64")}
	bridge := HostInterface{Name: "cni0", Kind: "bridge", Up: true, Addresses: prefixes("10.7.4.1/24", "10.8.0.1/24")}
	down := HostInterface{Name: "eth8", Kind: "device", Addresses: prefixes("10.7.5.1/24", "10.9.0.1/24")}
	for _, tt := range []struct {
		name       string
		interfaces string
		edit       func(*Host)
		want       string // the interfaces, separated by spaces
		errs       string // "": none
	}{
		{name: "name", interfaces: "[{name: eth9}]", want: "eth9"},
		{name: "prefix of a network", interfaces: "[{cidr: 10.0.0.0/8}]", want: "bond0.7"},
		{name: "prefix of two interfaces, without lo and kube-ipvs0", interfaces: "[{cidr: 192.0.2.0/24}]", want: "eth0 bond0.7"},
		{name: "address", interfaces: "[{cidr: 192.0.2.10/32}]", want: "eth0"},
		{name: "IPv6", interfaces: `[{cidr: "2001:db8::/32"}]`, want: "eth0"},
		{name: "default route, without kube-ipvs0", interfaces: "[{defaultRoute: true}]", want: "eth0"},
		{name: "both families of one interface are merged", interfaces: `[{cidr: 192.0.2.10/32}, {cidr: "2001:db8::/64"}, {defaultRoute: true}]`, want: "eth0"},
		{name: "a name and a selector of it are merged", interfaces: `[{defaultRoute: true}, {name: eth0}, {name: eth9}]`, want: "eth0 eth9"},
		{name: "no address", interfaces: "[{cidr: 198.51.100.0/24}]",
			errs: "weir.yaml:3: interfaces[0].cidr: no interface that can be attached has an address within 198.51.100.0/24 (there are: " + all + ")"},
		{name: "addresses of left out interfaces alone", interfaces: "[{cidr: 127.0.0.0/8}]", errs: "no interface that can be attached has an address within 127.0.0.0/8"},
		{name: "Weir's own pair", interfaces: "[{cidr: 10.200.0.0/24}]", errs: "no interface that can be attached has an address within 10.200.0.0/24"},
		{name: "host ends of pods", interfaces: `[{cidr: 10.7.0.0/16}, {cidr: "2001:db8::/64"}]`, edit: also(podVeth), want: "bond0.7 eth0"},
		{name: "host ends of pods alone", interfaces: "[{cidr: 10.7.3.0/24}]", edit: also(podVeth),
			errs: "no interface that can be attached has an address within 10.7.3.0/24 (there are: " + all + ", veth7 10.7.3.1/32 2001:db8::7:1/128 fe80::7/64 (left out))"},
		{name: "a veth that is a port of a network", interfaces: "[{cidr: 10.7.0.0/16}]", want: "bond0.7 veth8",
			edit: also(HostInterface{Name: "veth8", Kind: "veth", Up: true, Addresses: prefixes("10.7.3.1/32", "10.7.3.2/24")})},
		{name: "a kind that cannot be attached, beside another", interfaces: "[{cidr: 10.7.0.0/16}]", edit: also(bridge), want: "bond0.7"},
		{name: "a kind that cannot be attached, alone", interfaces: "[{cidr: 10.8.0.0/16}]", edit: also(bridge), want: "cni0"},
		{name: "an interface that is down, beside another", interfaces: "[{cidr: 10.7.0.0/16}]", edit: also(down), want: "bond0.7"},
		{name: "an interface that is down, alone", interfaces: "[{cidr: 10.9.0.0/16}]", edit: also(down), want: "eth8"},
		{name: "link-local addresses are no network's", interfaces: `[{cidr: "::/0"}]`, edit: also(podVeth), want: "eth0"},
		{name: "default route over a bridge", interfaces: "[{defaultRoute: true}]", want: "eth0 cni0",
			edit: func(h *Host) {
				also(bridge)(h)
				h.DefaultRoutes = func() ([]string, error) { return []string{"eth0", "cni0"}, nil }
			}},
		{name: "no default route", interfaces: "[{name: eth0}, {defaultRoute: true}]", want: "eth0",
			edit: func(h *Host) { h.DefaultRoutes = func() ([]string, error) { return nil, nil } },
			errs: "weir.yaml:3: interfaces[1].defaultRoute: no default route of IPv4 or IPv6 leads to an interface that can be attached (there are: " + all + ")"},
		{name: "another mode for the same interface", interfaces: "[{name: eth0, mode: generic}, {defaultRoute: true}]", want: "eth0",
			errs: "interfaces[1]: defaultRoute is eth0, which is also of interfaces[0] (eth0), with another mode, txChecksum or hook"},
		{name: "an entry that Validate refuses", interfaces: "[{name: eth0, defaultRoute: true}, {cidr: nonsense}, {cidr: 10.7.0.0/16}]", want: "bond0.7"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := parse(t, "apiVersion: weir.dev/v1alpha1\nkind: WeirConfiguration\ninterfaces: "+tt.interfaces+"\nsnat: {ports: 61000-65535}\nworkers: {count: auto}\n")
			h := node(t)
			if tt.edit != nil {
				tt.edit(&h)
			}
			if errs := c.CheckHost(h).Error(); tt.errs == "" && errs != "" || !strings.Contains(errs, tt.errs) {
				t.Errorf("got  %s\nwant %s", errs, tt.errs)
			}
			var got []string
			for _, f := range c.Attached() {
				got = append(got, f.Name)
			}
			if diff := cmp.Diff(tt.want, strings.Join(got, " ")); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestDefaultRoutesAreReadWhereTheyAreAskedFor(t *testing.T) {
	c, h := parse(t, "apiVersion: weir.dev/v1alpha1\nkind: WeirConfiguration\ninterfaces: [{cidr: 10.0.0.0/8}]\n"), node(t)
	h.DefaultRoutes = func() ([]string, error) { t.Error("the routes were read"); return nil, nil }
	c.CheckHost(h)
}

// The names that a selector has found are not part of the configuration: a reload compares
// the file, and a file that is written has the selectors.
func TestSelectorsStaySelectors(t *testing.T) {
	const text = "apiVersion: weir.dev/v1alpha1\nkind: WeirConfiguration\ninterfaces: [{cidr: 10.0.0.0/8, mode: native}, {defaultRoute: true}]\n"
	c := parse(t, text)
	c.CheckHost(node(t))
	want := []Selection{{"interfaces[0]", "cidr 10.0.0.0/8", []string{"bond0.7"}}, {"interfaces[1]", "defaultRoute", []string{"eth0"}}}
	if diff := cmp.Diff(want, c.Selections()); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if changed := c.TakeOver(parse(t, text)); len(changed) > 0 || len(c.Attached()) != 2 {
		t.Errorf("after a reload of the same file %v need a restart, attached are %v", changed, c.Attached())
	}
	if changed := c.TakeOver(parse(t, strings.Replace(text, "10.0.0.0/8", "10.7.0.0/16", 1))); len(changed) != 1 || changed[0] != "interfaces" {
		t.Errorf("after a reload with another prefix %v need a restart", changed)
	}
	data, err := c.Marshal()
	if err != nil || strings.Contains(string(data), "name: eth0") || !strings.Contains(string(data), "cidr: 10.0.0.0/8") {
		t.Errorf("written: %v\n%s", err, data)
	}
	if diff := cmp.Diff(c.Interfaces, parse(t, string(data)).Interfaces); diff != "" {
		t.Errorf("-before +after:\n%s", diff)
	}
}

// The kinds that a prefix prefers are those that can be attached.
func TestAttachableKindsHavePorts(t *testing.T) {
	for _, kind := range []string{
		"device", "veth", "netdevsim", "bond", "vlan", "bridge", "team", "macvlan", "ipvlan", "vxlan", "geneve", "ipip", "wireguard", "tuntap", "vrf", "novelty",
	} {
		mac := net.HardwareAddr{2, 0, 0, 0, 0, 1}
		links := []device.Link{
			{Index: 1, Name: "lower", Kind: "device", MAC: mac, Up: true},
			{Index: 2, Name: "upper", Kind: kind, MAC: mac, Up: true, Parent: 1, VLAN: 7, Bond: "802.3ad"},
			{Index: 3, Name: "member", Kind: "device", MAC: mac, Up: true, Master: 2},
		}
		if _, err := device.Resolve("upper", links); (err == nil) != slices.Contains(attachable, kind) {
			t.Errorf("%s: %v, and among attachable kinds: %v", kind, err, slices.Contains(attachable, kind))
		}
	}
}

// A dump of routes that a change has interrupted is repeated, and does not add to the last.
func TestInterruptedDumpsAreRepeated(t *testing.T) {
	for _, tt := range []struct {
		name  string
		fails int
		err   error
		want  []int
	}{
		{"whole", 0, netlink.ErrDumpInterrupted, []int{1}},
		{"interrupted", 2, netlink.ErrDumpInterrupted, []int{3}},
		{"always interrupted", 9, netlink.ErrDumpInterrupted, []int{5}},
		{"failed", 1, errors.New("no netlink"), nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			calls := 0
			got, err := whole(func() ([]int, error) {
				if calls++; calls > tt.fails {
					return []int{calls}, nil
				}
				if tt.want == nil {
					return nil, tt.err
				}
				return []int{calls}, tt.err
			})
			if diff := cmp.Diff(tt.want, got); diff != "" || (err != nil) != (tt.want == nil) {
				t.Errorf("%v %s", err, diff)
			}
		})
	}
}

// A process that starts again has the interfaces that it had, whatever the selectors would
// find now.
func TestResumedConfigurationKeepsItsInterfaces(t *testing.T) {
	const text = "apiVersion: weir.dev/v1alpha1\nkind: WeirConfiguration\ninterfaces: [{name: eth9}, {cidr: 10.0.0.0/8, mode: native}, {defaultRoute: true}]\n" +
		"snat: {ports: 61000-65535}\nworkers: {count: auto}\n"
	before, h := parse(t, text), node(t)
	before.CheckHost(h)
	data, err := before.MarshalResolved()
	if err != nil {
		t.Fatal(err)
	}
	c, err := AddFlags(pflag.NewFlagSet("weir", pflag.ContinueOnError)).Resume(data)
	if err != nil {
		t.Fatal(err)
	}
	h.DefaultRoutes = func() ([]string, error) { return nil, nil }
	if errs := c.CheckHost(h); len(errs) > 0 {
		t.Error(errs)
	}
	if diff := cmp.Diff(before.Attached(), c.Attached()); diff != "" || len(c.Attached()) != 3 {
		t.Errorf("attached, -before +after:\n%s", diff)
	}
	if diff := cmp.Diff(before.Selections(), c.Selections()); diff != "" {
		t.Errorf("selections, -before +after:\n%s", diff)
	}
	if changed := c.Changed(parse(t, text)); len(changed) > 0 {
		t.Errorf("%v differ", changed)
	}
	links, _ := h.Interfaces()
	h.Interfaces = func() ([]HostInterface, error) { return links[:2], nil } // lo and eth0
	if errs := c.CheckHost(h).Error(); !strings.Contains(errs, "interfaces: interface eth9: no such interface (there are: lo, eth0)") || !strings.Contains(errs, "bond0.7") {
		t.Errorf("got %s", errs)
	}
}
