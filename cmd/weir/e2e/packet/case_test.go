package packet

import (
	"fmt"
	"github.com/weirlb/weir/perf/netlab/labtest"
	"slices"
	"testing"
)

// Forwarding modes, as in weir.dev/forwarding-mode.
const (
	nat   = "nat"
	dnat  = "dnat"
	l2dsr = "l2dsr"
	ipip  = "ipip"
	gue   = "gue"
)

var (
	every    = []string{nat, dnat, l2dsr, ipip, gue}
	tunnels  = []string{ipip, gue}
	dsrModes = []string{l2dsr, ipip, gue}
	// In dnat endpoints are behind the edge's kernel, in the others on the wire.
	onFabric = []string{nat, l2dsr, ipip, gue}
	// Without another header in front.
	unwrapped = []string{nat, dnat, l2dsr}
	natModes  = []string{nat, dnat}
)

// Families; a scenario without any gets both.
const (
	ipv4 = 4
	ipv6 = 6
)

// untagged is for scenarios in which the kernel takes part: it has no VLANs
// here.
var untagged = [][]uint16{nil}

// priorityTag is a tag of priority 5 and VLAN 0: of the untagged network (IEEE 802.1Q
// section 6.9.1).
const priorityTag = 5 << 13

// rows are what a packet may be, in the order of the report.
var rows = []struct{ key, text string }{
	{"flow", "to a frontend, a flow exists"},
	{"new", "to a frontend, new"},
	{"no-flow", "TCP to a frontend, no SYN, no flow"},
	{"snat", "to an SNAT address and port, no flow"},
	{"next-hop", "next hop's MAC not known yet"},
	{"no-endpoint", "no endpoint at all"},
	{"no-local", "endpoints exist, none local under Local policy"},
	{"source-range", "not in loadBalancerSourceRanges"},
	{"reverse-path", "the source is behind another interface"},
	{"policy", "affinity, limits, algorithms"},
	{"answer", "the endpoint's answer"},
	{"icmp-error", "ICMP error about a flow"},
	{"echo", "ICMP echo to a frontend's address"},
	{"fragment", "fragments"},
	{"router", "TTL, bad headers, truncated, martian"},
	{"too-big", "larger than the outgoing link allows"},
	{"options", "IPv4 options, IPv6 extension headers"},
	{"gone", "the flow's endpoint is gone"},
	{"cached", "of a flow that the kernel forwards"},
	{"sctp", "SCTP"},
	{"quic", "QUIC connection IDs"},
	{"other", "not Weir's"},
}

// scenario is one thing to show, in one or more modes, families and taggings.
type scenario struct {
	row, name string
	modes     []string // nil: nat
	families  []int    // nil: both
	// tags are the tags to run it with; nil: none, and a priority tag.
	tags [][]uint16
	// service is the Service to use, by name; "": "one".
	service string
	// lab is the set-up of Weir to run it with; "": the usual one.
	lab string
	// drops is what must be counted, per run, and nothing else.
	drops map[string]int
	// byRange says that they are counted where packets to SNAT addresses are told by ports alone.
	byRange bool
	run     func(*scene)
}

// drop is one packet dropped under a reason.
func drop(reason string) map[string]int { return map[string]int{reason: 1} }

var scenarios []scenario

func add(list ...scenario) {
	for _, c := range list {
		if !slices.ContainsFunc(rows, func(r struct{ key, text string }) bool { return r.key == c.row }) {
			panic("no row " + c.row)
		}
		if c.modes == nil {
			c.modes = []string{nat}
		}
		if c.families == nil {
			c.families = []int{ipv4, ipv6}
		}
		if c.tags == nil {
			c.tags = [][]uint16{nil, {priorityTag}}
		}
		if c.service == "" {
			c.service = "one"
		}
		if c.lab == "" {
			c.lab = "usual"
		}
		scenarios = append(scenarios, c)
	}
}

// variant is a scenario in one mode, family and tagging.
type variant struct {
	scenario
	mode string
	six  bool
	tags []uint16
}

func (c scenario) variants() []variant {
	var out []variant
	for _, mode := range c.modes {
		for _, family := range c.families {
			for _, tags := range c.tags {
				out = append(out, variant{c, mode, family == ipv6, tags})
			}
		}
	}
	return out
}

// family is IPv4 or IPv6.
func (v variant) family() string {
	if v.six {
		return "IPv6"
	}
	return "IPv4"
}

// tagging says which tags the packets carry.
func (v variant) tagging() string { return taggingOf(v.tags) }

func taggingOf(tags []uint16) string {
	switch {
	case len(tags) == 0:
		return "untagged"
	case len(tags) > 1:
		return "QinQ"
	case tags[0]&0xfff == 0:
		return "priority-tagged"
	}
	return "VLAN"
}

// test is the name of the variant below TestWirePackets.
func (v variant) test() string {
	return fmt.Sprintf("%s/%s/%s/%s/%s", v.row, v.name, v.mode, v.family(), v.tagging())
}

// maxFailed is how many cases may fail, some seconds each, before the rest is
// not run.
const maxFailed = 20

// TestWirePackets is the table. A Weir that does not start fails the first of its
// cases, and a table that is given up fails once: cases that were not run are counted,
// not failed.
func TestWirePackets(t *testing.T) {
	labtest.Require(t)
	failed, left := 0, 0
	for _, name := range labNames() {
		var l *lab // made when first needed, so that -run of another lab's case is quick
		broken := false
		for _, v := range variantsOf(name) {
			if broken || failed >= maxFailed {
				left++
				continue
			}
			ok := t.Run(v.test(), func(t *testing.T) {
				if l == nil {
					broken = true
					l = newLab(t, name)
					broken = false
				}
				l.check(t, v)
			})
			if !ok {
				failed++
			}
		}
		if l != nil {
			l.close(t)
		}
	}
	if left > 0 {
		t.Errorf("%d cases were not run: %d failed before them, or their Weir did not start", left, failed)
	}
}

// variantsOf are the variants of all scenarios of a lab.
func variantsOf(lab string) []variant {
	var out []variant
	for _, c := range scenarios {
		if c.lab == lab {
			out = append(out, c.variants()...)
		}
	}
	return out
}
