package hostcheck

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/weirlb/weir/cmd/weir/config"
)

func TestNodePortAddresses(t *testing.T) {
	addrs := func(list ...string) (out []netip.Addr) {
		for _, s := range list {
			out = append(out, netip.MustParseAddr(s))
		}
		return out
	}
	machine := addrs("192.0.2.9", "127.0.0.1", "192.0.2.2", "fe80::1", "2001:db8::2", "::1")
	source := func(family int) netip.Addr {
		if family == netlink.FAMILY_V4 {
			return netip.MustParseAddr("192.0.2.9")
		}
		return netip.Addr{}
	}
	for _, tt := range []struct {
		name     string
		settings []string
		node     []netip.Addr
		want     []netip.Addr
	}{
		{"no Node", []string{config.Primary}, nil, addrs("192.0.2.9", "2001:db8::2")},
		{"of the Node", []string{config.Primary}, addrs("198.51.100.1", "192.0.2.2"), addrs("192.0.2.2", "2001:db8::2")},
		{"of another Node", []string{config.Primary}, addrs("198.51.100.1"), addrs("198.51.100.1", "2001:db8::2")},
		{"prefix", []string{"192.0.2.0/28"}, nil, addrs("192.0.2.2", "192.0.2.9")},
		{"all", nil, nil, addrs("192.0.2.2", "192.0.2.9", "2001:db8::2")},
	} {
		cfg := config.Default()
		cfg.NodePortAddresses = tt.settings
		if got := nodePortAddresses(cfg, tt.node, machine, source); !slices.Equal(got, tt.want) {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
}
