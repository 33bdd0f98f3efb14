package pcapfilter

import (
	"fmt"
	"net/netip"
	"strings"
)

// qualifiers are the words before the value of a primitive.
type qualifiers struct {
	protocol string // ip, ip6, tcp, udp, sctp, or ""
	dir      dir
	what     string // host, net, port, portrange, or ""
}

// protocols are the protocol tests by name.
var protocols = map[string]node{
	"ip":    {kind: kindFamily, lo: 4},
	"ip6":   {kind: kindFamily, lo: 6},
	"arp":   {kind: kindEtherType, lo: typeARP},
	"tcp":   {kind: kindProto, lo: protoTCP},
	"udp":   {kind: kindProto, lo: protoUDP},
	"sctp":  {kind: kindProto, lo: protoSCTP},
	"icmp":  {kind: kindProto, lo: protoICMP},
	"icmp6": {kind: kindProto, lo: protoICMPv6},
}

// primitive is a test, with the qualifiers of the previous if it has none.
func (c *compiler) primitive() (int32, error) {
	switch {
	case c.take("less"):
		return c.length(kindLess)
	case c.take("greater"):
		return c.length(kindGreater)
	case c.take("vlan"):
		return c.vlan()
	case c.take("service"):
		return c.service()
	case c.take("proto"):
		return c.protocol(-1)
	case c.peek() == "":
		return 0, fmt.Errorf("expected a test, found the end")
	}
	q, alone, err := c.qualifiers()
	if err != nil {
		return 0, err
	}
	if alone {
		c.last = qualifiers{}
		if q.protocol == "tcp" && c.peek() == "[" {
			return c.flags()
		}
		test := c.protocolTest(q.protocol)
		if (q.protocol == "ip" || q.protocol == "ip6") && c.take("proto") {
			return c.protocol(test)
		}
		return test, nil
	}
	if q == (qualifiers{}) {
		q = c.last
	}
	c.last = q
	return c.value(q)
}

// protocolTest is a test for a protocol. icmp is of IPv4, icmp6 of IPv6.
func (c *compiler) protocolTest(name string) int32 {
	test := c.add(protocols[name])
	switch name {
	case "icmp":
		test = c.join(kindAnd, c.add(protocols["ip"]), test)
	case "icmp6":
		test = c.join(kindAnd, c.add(protocols["ip6"]), test)
	}
	return test
}

// qualifiers takes the words before a value. alone means that no value follows.
func (c *compiler) qualifiers() (q qualifiers, alone bool, err error) {
	if _, ok := protocols[c.peek()]; ok {
		q.protocol = c.next()
	}
	switch {
	case c.take("src"):
		q.dir = source
		if two := c.tokens; two.take("or") && two.take("dst") {
			q.dir, c.tokens = either, two
		} else if two = c.tokens; two.take("and") && two.take("dst") {
			q.dir, c.tokens = both, two
		}
	case c.take("dst"):
		q.dir = destination
	}
	switch c.peek() {
	case "host", "net", "port", "portrange":
		q.what = c.next()
	}
	if q.dir == either && q.what == "" {
		return q, q.protocol != "", nil
	}
	switch q.protocol {
	case "arp", "icmp", "icmp6":
		return q, false, fmt.Errorf("%s: it has no %s", q.protocol, q.what)
	}
	return q, false, nil
}

// value is a test for the next token, an address, network, port or range of ports.
func (c *compiler) value(q qualifiers) (int32, error) {
	s, n := c.next(), node{dir: q.dir}
	var err error
	switch q.what {
	case "port":
		n.kind = kindPort
		n.lo, err = number(s, "port", 65535)
		n.hi = n.lo
	case "portrange":
		n.kind = kindPort
		from, to, _ := strings.Cut(s, "-")
		if n.lo, err = number(from, "portrange", 65535); err == nil {
			n.hi, err = number(to, "portrange", 65535)
		}
	case "net":
		n.kind = kindPrefix
		if n.prefix, err = netip.ParsePrefix(s); err != nil {
			err = fmt.Errorf("net: expected ADDRESS/LENGTH, found %q", s)
		}
		n.prefix = n.prefix.Masked()
	default:
		n.kind = kindPrefix
		a, e := netip.ParseAddr(s)
		if e != nil || a.Zone() != "" {
			return 0, fmt.Errorf("expected an address or a test, found %q", s)
		}
		a = a.Unmap()
		n.prefix = netip.PrefixFrom(a, a.BitLen())
	}
	if err != nil {
		return 0, err
	}
	at := c.add(n)
	if q.protocol != "" {
		at = c.join(kindAnd, c.add(protocols[q.protocol]), at)
	}
	return at, nil
}

func (c *compiler) length(k kind) (int32, error) {
	n, err := number(c.next(), "length", 1<<16)
	return c.add(node{kind: k, lo: n}), err
}

// vlan is a test for a VLAN, or for any.
func (c *compiler) vlan() (int32, error) {
	if s := c.peek(); s == "" || s[0] < '0' || s[0] > '9' {
		return c.add(node{kind: kindVLAN, hi: 4095}), nil
	}
	n, err := number(c.next(), "vlan", 4095)
	return c.add(node{kind: kindVLAN, lo: n, hi: n}), err
}

// protocol is a test for the protocol that is the next token, and for family, -1 for any.
func (c *compiler) protocol(family int32) (int32, error) {
	s := strings.TrimPrefix(c.next(), `\`)
	n, known := protocols[s]
	if !known || n.kind != kindProto {
		v, err := number(s, "proto", 255)
		if err != nil {
			return 0, err
		}
		n = node{kind: kindProto, lo: v}
	}
	at := c.add(n)
	if family >= 0 {
		at = c.join(kindAnd, family, at)
	}
	return at, nil
}

// tcpFlags are the names of the flags in a comparison.
var tcpFlags = map[string]uint32{
	"tcp-fin": 1, "tcp-syn": 2, "tcp-rst": 4, "tcp-push": 8,
	"tcp-ack": 16, "tcp-urg": 32, "tcp-ece": 64, "tcp-cwr": 128,
}

// flags is the comparison of the flags behind "tcp".
func (c *compiler) flags() (int32, error) {
	c.next()
	if !c.take("tcpflags", "13") {
		return 0, fmt.Errorf("tcp[...]: expected tcpflags or 13, found %s", c.found())
	}
	if err := c.expect("]"); err != nil {
		return 0, err
	}
	n := node{kind: kindFlags, mask: 255}
	if c.take("&") {
		mask, err := c.flagsValue()
		if err != nil {
			return 0, err
		}
		n.mask = uint8(mask)
	}
	switch {
	case c.take("!="):
		n.hi = 1
	case !c.take("=", "=="):
		return 0, fmt.Errorf("tcp[tcpflags]: expected a comparison with = or !=, found %s", c.found())
	}
	var err error
	n.lo, err = c.flagsValue()
	return c.add(n), err
}

// flagsValue is a flag, a number, or several of these in parentheses with |.
func (c *compiler) flagsValue() (v uint32, err error) {
	group := c.take("(")
	for {
		s := c.next()
		bit, ok := tcpFlags[s]
		if !ok {
			if bit, err = number(s, "tcp[tcpflags]", 255); err != nil {
				return 0, err
			}
		}
		v |= bit
		if !c.take("|") {
			break
		}
	}
	if group {
		err = c.expect(")")
	}
	return v, err
}
