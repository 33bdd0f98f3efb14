package firewall

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

func interfaceCondition(names string, equal bool) condition {
	list := strings.Split(names, ",")
	text := "iifname " + names
	if !equal {
		text = "iifname != " + names
	}
	return condition{text: text, met: func(p *Packet) bool {
		return len(p.Interfaces) == 0 || slices.ContainsFunc(p.Interfaces, func(name string) bool {
			return slices.ContainsFunc(list, func(pattern string) bool { return matches(pattern, name) }) == equal
		})
	}}
}

func protocolCondition(number uint8, equal bool) condition {
	name := map[uint8]string{unix.IPPROTO_TCP: "tcp", unix.IPPROTO_UDP: "udp", unix.IPPROTO_SCTP: "sctp"}[number]
	if name == "" {
		name = fmt.Sprintf("protocol %d", number)
	}
	if !equal {
		name = "protocol != " + name
	}
	return condition{text: name, met: func(p *Packet) bool { return p.Protocol == 0 || (p.Protocol == number) == equal }}
}

func addressCondition(prefixes []netip.Prefix, equal bool) condition {
	var words []string
	for _, p := range prefixes {
		if p.IsSingleIP() {
			words = append(words, p.Addr().String())
		} else {
			words = append(words, p.String())
		}
	}
	text := "daddr " + strings.Join(words, ",")
	if !equal {
		text = "daddr != " + strings.Join(words, ",")
	}
	c := condition{text: text, located: true}
	for _, p := range prefixes {
		if equal && p.IsValid() {
			c.addrs = append(c.addrs, [2]netip.Addr{p.Masked().Addr(), lastOf(p.Masked())})
		}
	}
	c.met = func(p *Packet) bool {
		to := p.To.Addr()
		return !to.IsValid() || slices.ContainsFunc(prefixes, func(x netip.Prefix) bool { return x.Contains(to) }) == equal
	}
	return c
}

func portCondition(list [][2]uint16, equal bool) condition {
	var words []string
	for _, r := range list {
		if r[0] == 0 && r[1] == 0xffff {
			return condition{}
		}
		if r[0] == r[1] {
			words = append(words, fmt.Sprint(r[0]))
		} else {
			words = append(words, fmt.Sprintf("%d-%d", r[0], r[1]))
		}
	}
	text := "dport " + strings.Join(words, ",")
	if !equal {
		text = "dport != " + strings.Join(words, ",")
	}
	c := condition{text: text, located: true}
	if equal {
		c.ports = append(make([][2]uint16, 0, len(list)), list...)
	}
	c.met = func(p *Packet) bool {
		first, last := p.To.Port(), max(p.To.Port(), p.LastPort)
		in := func(r [2]uint16) bool { return r[0] <= last && first <= r[1] }
		if equal {
			return slices.ContainsFunc(list, in)
		}
		return !slices.ContainsFunc(list, func(r [2]uint16) bool { return r[0] <= first && last <= r[1] })
	}
	return c
}
