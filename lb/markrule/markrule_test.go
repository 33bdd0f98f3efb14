package markrule

import (
	"testing"

	"github.com/vishvananda/netlink"
)

func TestMarksConflict(t *testing.T) {
	rule := func(mark uint32, mask ...uint32) *netlink.Rule {
		r := netlink.NewRule()
		if r.Mark = mark; len(mask) > 0 {
			r.Mask = &mask[0]
		}
		return r
	}
	for _, c := range []struct {
		name            string
		rule            *netlink.Rule
		returns, probes bool // with the default marks
	}{
		{"no mark", rule(0), false, false},
		{"kube-proxy's masquerade bit", rule(0x4000, 0x4000), false, false},
		{"Cilium's proxy", rule(0x200, 0xf00), false, false},
		{"Calico's WireGuard", rule(0x100000, 0x100000), false, false},
		{"wg-quick", rule(51820), false, false},
		{"AWS VPC CNI", rule(0x80, 0x80), false, false},
		{"the portmap plugin", rule(0x2000, 0x2000), false, false},
		{"Tailscale", rule(0x80000, 0xff0000), false, false},
		{"the bit of the return path", rule(0x10, 0x10), true, false},
		{"the value of the return path", rule(0x10), true, false},
		{"a value that has the bit", rule(0x13), true, false},
		{"the bit of probes", rule(0x1000, 0x1000), false, true},
	} {
		if got := conflict(0x10, c.rule); got != c.returns {
			t.Errorf("%s: with the mark of the return path: %v", c.name, got)
		}
		if got := conflict(0x1000, c.rule); got != c.probes {
			t.Errorf("%s: with the mark of probes: %v", c.name, got)
		}
	}
}
