package router

import (
	"fmt"
	"net/netip"
	"strings"
)

// FRRBeside is a configuration of FRR on a node, which announces the IPv4 routes of a table of the
// kernel to a router. It cannot import IPv6 routes of a table.
func FRRBeside(table int, router netip.Addr) string {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	line("ip import-table %d", table)
	line("router bgp %d\n bgp router-id 10.255.1.1", NodeASN)
	line(" no bgp ebgp-requires-policy\n no bgp network import-check\n no bgp default ipv4-unicast")
	line(" neighbor %s remote-as %d\n neighbor %s timers 3 9\n neighbor %s timers connect 1", router, ASN, router, router)
	line(" neighbor %s advertisement-interval 0", router)
	line(" address-family ipv4 unicast\n  redistribute table %d\n  neighbor %s activate\n exit-address-family\nexit", table, router)
	return b.String()
}

// BIRDBeside is a configuration of BIRD on a node, which announces the routes of a table of the
// kernel to routers.
func BIRDBeside(table int, routers ...netip.Addr) string {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	line("router id 10.255.1.1;\nprotocol device { }")
	for _, f := range []string{"ipv4", "ipv6"} {
		line("protocol kernel k%s { kernel table %d; learn; scan time 5; %s { import all; export none; }; }", f, table, f)
	}
	for i, a := range routers {
		family := "ipv4"
		if a.Is6() {
			family = "ipv6"
		}
		line("protocol bgp r%d {\n local as %d; neighbor %s as %d; direct; hold time 9;", i, NodeASN, a, ASN)
		line(" connect retry time 1; error wait time 1, 1;")
		line(" %s { import none; export all; next hop self; };\n}", family)
	}
	return b.String()
}
