package router

import (
	"fmt"
	"net/netip"
	"strings"
)

// ASN are the numbers of the router and of the nodes.
const (
	ASN     = 65000
	NodeASN = 65001
)

// Neighbors are the nodes that a router has sessions with.
type Neighbors struct {
	Addresses []netip.Addr   // named
	Ranges    []netip.Prefix // or any node in a range
	Interface string         // or unnumbered
	Password  string
	// Hold is the hold time in seconds; 0: 9.
	Hold int
	// BFD is the time between packets of BFD in milliseconds, of which three may be lost; 0: no
	// BFD. It is of FRR alone.
	BFD int
}

func (n *Neighbors) hold() int {
	if n.Hold == 0 {
		return 9
	}
	return n.Hold
}

// FRR is a configuration of FRR with ECMP over all nodes.
func FRR(n Neighbors) string {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	if n.BFD > 0 { // before any exit: in a daemon without the block above, that is the end of the configuration
		line("%s\n profile fast\n  receive-interval %d\n  transmit-interval %d\n  detect-multiplier 3", bfdLine, n.BFD, n.BFD)
	}
	if n.Interface != "" { // first: zebra, which does not know router bgp, must be at the top level
		line("interface %s\n no ipv6 nd suppress-ra\n ipv6 nd ra-interval 1\nexit", n.Interface)
	}
	line("router bgp %d", ASN)
	line(" bgp router-id 10.255.0.1")
	line(" no bgp ebgp-requires-policy\n no bgp network import-check\n bgp bestpath as-path multipath-relax")
	line(" no bgp default ipv4-unicast")
	for _, g := range []string{"N4", "N6"} {
		line(" neighbor %s peer-group\n neighbor %s remote-as %d", g, g, NodeASN)
		line(" neighbor %s timers %d %d\n neighbor %s timers connect 1", g, max(n.hold()/3, 1), n.hold(), g)
		line(" neighbor %s advertisement-interval 0", g)
		if n.BFD > 0 {
			line(" neighbor %s bfd\n neighbor %s bfd profile fast", g, g)
		}
		if n.Password != "" {
			line(" neighbor %s password %s", g, n.Password)
		}
	}
	for _, a := range n.Addresses {
		line(" neighbor %s peer-group %s", a, group(a))
	}
	for _, p := range n.Ranges {
		line(" bgp listen range %s peer-group %s", p, group(p.Addr()))
	}
	if n.Interface != "" {
		line(" neighbor %s interface peer-group N6", n.Interface)
	}
	v4, v6 := []string{"N4"}, []string{"N6"}
	if n.Interface != "" {
		v4 = []string{"N6"}
	}
	for _, f := range []struct {
		name   string
		groups []string
	}{{"ipv4", v4}, {"ipv6", v6}} {
		line(" address-family %s unicast\n  maximum-paths 64", f.name)
		for _, g := range f.groups {
			line("  neighbor %s activate", g)
		}
		line(" exit-address-family")
	}
	line("exit")
	return b.String()
}

// bfdLine begins the configuration of FRR's daemon for BFD.
const bfdLine = "bfd"

func group(a netip.Addr) string {
	if a.Is6() {
		return "N6"
	}
	return "N4"
}

// BIRD is a configuration of BIRD with ECMP over all nodes.
func BIRD(n Neighbors) string {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	line("router id 10.255.0.1;\nprotocol device { }")
	for _, f := range []string{"ipv4", "ipv6"} {
		line("protocol kernel k%s { merge paths on limit 64; %s { import none; export all; }; }", f, f)
	}
	for i, a := range n.Addresses {
		family := "ipv4"
		if a.Is6() {
			family = "ipv6"
		}
		line("protocol bgp n%d {\n local as %d; neighbor %s as %d; direct; hold time %d;", i, ASN, a, NodeASN, n.hold())
		line(" connect retry time 1; error wait time 1, 1;")
		if n.Password != "" {
			line(" password %q;", n.Password)
		}
		line(" %s { import all; export none; };\n}", family)
	}
	return b.String()
}
