package firewall

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/xt"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// field is a part of a packet that a register holds.
type field uint8

const (
	unknown field = iota
	inInterface
	family
	protocol
	destination  // IPv4
	destination6 // IPv6
	destinationPort
)

// registers follows the expressions of a rule of nftables.
type registers struct {
	conn  *nftables.Conn
	table *nftables.Table
	holds map[uint32]field
	masks map[uint32][]byte
	low   []byte // the first value of a range

	conditions []condition
	end        string // of the rule, "" where packets go on
	jumps      []string
}

func (s *registers) set(register uint32, f field) {
	if s.holds == nil {
		s.holds, s.masks = map[uint32]field{}, map[uint32][]byte{}
	}
	s.holds[register] = f
	delete(s.masks, register)
}

// step takes an expression over.
func (s *registers) step(e expr.Any) {
	switch e := e.(type) {
	case *expr.Meta:
		if !e.SourceRegister {
			s.set(e.Register, map[expr.MetaKey]field{
				expr.MetaKeyIIFNAME: inInterface, expr.MetaKeyNFPROTO: family, expr.MetaKeyL4PROTO: protocol,
			}[e.Key])
		}
	case *expr.Payload:
		s.set(e.DestRegister, s.payload(e))
	case *expr.Bitwise:
		f := s.holds[e.SourceRegister]
		s.set(e.DestRegister, f)
		s.masks[e.DestRegister] = e.Mask
	case *expr.Cmp:
		s.compare(e)
	case *expr.Range:
		s.between(e)
	case *expr.Lookup:
		s.lookup(e)
	case *expr.Match:
		s.match(e)
	case *expr.Verdict:
		s.verdictOf(e)
	case *expr.Reject:
		s.end = "reject"
	case *expr.Queue:
		s.end = "queue"
	case *expr.NAT:
		if e.Type == expr.NATTypeDestNAT {
			s.end = "dnat"
		}
	case *expr.Redir:
		s.end = "redirect"
	case *expr.Target:
		if slices.Contains([]string{"DNAT", "REDIRECT", "REJECT", "NFQUEUE", "TPROXY"}, e.Name) {
			s.end = strings.ToLower(e.Name)
		}
	}
}

func (s *registers) payload(e *expr.Payload) field {
	switch {
	case e.Base == expr.PayloadBaseTransportHeader && e.Offset == 2 && e.Len == 2:
		return destinationPort
	case e.Base == expr.PayloadBaseNetworkHeader && e.Offset == 16 && e.Len <= 4:
		return destination
	case e.Base == expr.PayloadBaseNetworkHeader && e.Offset == 24:
		return destination6
	case e.Base == expr.PayloadBaseNetworkHeader && (e.Offset == 9 || e.Offset == 6) && e.Len == 1:
		return protocol
	}
	return unknown
}

// compare adds the condition of a comparison with a value.
func (s *registers) compare(e *expr.Cmp) {
	switch e.Op {
	case expr.CmpOpEq, expr.CmpOpNeq:
	case expr.CmpOpGte: // of a range; by itself it counts as met
		s.low = e.Data
		return
	case expr.CmpOpLte:
		if len(s.low) == len(e.Data) {
			s.between(&expr.Range{Op: expr.CmpOpEq, Register: e.Register, FromData: s.low, ToData: e.Data})
		}
		return
	default:
		return
	}
	equal := e.Op == expr.CmpOpEq
	switch f := s.holds[e.Register]; {
	case f == inInterface:
		name := string(bytes.TrimRight(e.Data, "\x00"))
		if len(name) == len(e.Data) { // compared without its end
			name += "*"
		}
		s.add(interfaceCondition(name, equal))
	case f == family && len(e.Data) == 1 && equal:
		is4 := e.Data[0] == unix.NFPROTO_IPV4
		s.add(condition{met: func(p *Packet) bool { return !p.To.Addr().IsValid() || p.To.Addr().Is4() == is4 }})
	case f == protocol && len(e.Data) == 1:
		s.add(protocolCondition(e.Data[0], equal))
	case f == destinationPort && len(e.Data) == 2:
		n := binary.BigEndian.Uint16(e.Data)
		s.ports([][2]uint16{{n, n}}, equal)
	case f == destination || f == destination6:
		if prefix, ok := prefixOf(e.Data, s.masks[e.Register], f == destination6); ok {
			s.add(addressCondition([]netip.Prefix{prefix}, equal))
		}
	}
}

// prefixOf reads an address that was masked, or only compared in part.
func prefixOf(data, mask []byte, ipv6 bool) (netip.Prefix, bool) {
	size := 4
	if ipv6 {
		size = 16
	}
	bits := len(data) * 8
	for i := range mask {
		if mask[i] != 0xff {
			bits = i*8 + leadingOnes(mask[i])
			break
		}
	}
	a, ok := netip.AddrFromSlice(append(slices.Clone(data), make([]byte, max(0, size-len(data)))...))
	return netip.PrefixFrom(a, bits), ok
}

func leadingOnes(b byte) (n int) {
	for ; b&0x80 != 0; b <<= 1 {
		n++
	}
	return n
}

// between adds the condition of a comparison with two values.
func (s *registers) between(e *expr.Range) {
	equal := e.Op == expr.CmpOpEq
	switch f := s.holds[e.Register]; {
	case f == destinationPort && len(e.FromData) == 2 && len(e.ToData) == 2:
		s.ports([][2]uint16{{binary.BigEndian.Uint16(e.FromData), binary.BigEndian.Uint16(e.ToData)}}, equal)
	case f == destination || f == destination6:
		s.addresses("", [][2][]byte{{e.FromData, e.ToData}}, equal)
	}
}

// addresses adds the condition of ranges of destinations, of a set or without a name.
func (s *registers) addresses(set string, ranges [][2][]byte, equal bool) {
	var list [][2]netip.Addr
	for _, r := range ranges {
		from, ok := netip.AddrFromSlice(r[0])
		to, ok2 := netip.AddrFromSlice(r[1])
		if ok && ok2 {
			list = append(list, [2]netip.Addr{from, to})
		}
	}
	text := "daddr @" + set
	if set == "" && len(list) == 1 {
		text = fmt.Sprintf("daddr %s-%s", list[0][0], list[0][1])
	}
	if !equal {
		text = strings.Replace(text, " ", " != ", 1)
	}
	c := condition{text: text, located: true}
	if equal {
		c.addrs = append(make([][2]netip.Addr, 0, len(list)), list...)
	}
	c.met = func(p *Packet) bool {
		to := p.To.Addr()
		in := func(r [2]netip.Addr) bool { return r[0].Compare(to) <= 0 && to.Compare(r[1]) <= 0 }
		return !to.IsValid() || slices.ContainsFunc(list, in) == equal
	}
	s.add(c)
}

func (s *registers) add(c condition) { s.conditions = append(s.conditions, c) }

func (s *registers) ports(list [][2]uint16, equal bool) { s.add(portCondition(list, equal)) }

// lookup adds the condition of a set, or the verdicts of a map.
func (s *registers) lookup(e *expr.Lookup) {
	f := s.holds[e.SourceRegister]
	set, err := s.conn.GetSetByName(s.table, e.SetName)
	if err != nil {
		return
	}
	elements, err := s.conn.GetSetElements(set)
	if err != nil {
		return
	}
	if e.IsDestRegSet {
		elements = slices.DeleteFunc(elements, func(el nftables.SetElement) bool {
			v := verdictIn(el.Val)
			s.verdictOf(&v)
			return v.Kind == expr.VerdictAccept && !el.IntervalEnd
		})
	}
	if set.Concatenation {
		return
	}
	switch f {
	case destinationPort:
		var list [][2]uint16
		for _, r := range intervals(elements, set.Interval, 2) {
			list = append(list, [2]uint16{binary.BigEndian.Uint16(r[0]), binary.BigEndian.Uint16(r[1])})
		}
		s.ports(list, !e.Invert)
	case destination, destination6:
		s.addresses(e.SetName, intervals(elements, set.Interval, int(set.KeyType.Bytes)), !e.Invert)
	case inInterface:
		var names []string
		for _, el := range elements {
			names = append(names, string(bytes.TrimRight(el.Key, "\x00")))
		}
		s.add(interfaceCondition(strings.Join(names, ","), !e.Invert))
	case protocol:
		var list []byte
		for _, el := range elements {
			list = append(list, el.Key...)
		}
		equal := !e.Invert
		s.add(condition{met: func(p *Packet) bool { return p.Protocol == 0 || bytes.IndexByte(list, p.Protocol) >= 0 == equal }})
	}
}

// verdictIn is the verdict of an element of a map. The library leaves it as it came: nested
// attributes.
func verdictIn(val []byte) (v expr.Verdict) {
	v.Kind = expr.VerdictAccept
	attrs, err := nl.ParseRouteAttr(val)
	if err != nil {
		return v
	}
	for _, a := range attrs {
		switch a.Attr.Type & nl.NLA_TYPE_MASK {
		case unix.NFTA_VERDICT_CODE:
			if len(a.Value) == 4 {
				v.Kind = expr.VerdictKind(int32(binary.BigEndian.Uint32(a.Value)))
			}
		case unix.NFTA_VERDICT_CHAIN:
			v.Chain = strings.TrimRight(string(a.Value), "\x00")
		}
	}
	return v
}

// intervals are the first and last keys of the elements of a set.
func intervals(elements []nftables.SetElement, ranges bool, size int) (list [][2][]byte) {
	elements = slices.DeleteFunc(slices.Clone(elements), func(e nftables.SetElement) bool { return len(e.Key) != size })
	if !ranges {
		for _, e := range elements {
			list = append(list, [2][]byte{e.Key, e.Key})
		}
		return list
	}
	slices.SortFunc(elements, func(a, b nftables.SetElement) int { return bytes.Compare(a.Key, b.Key) })
	for i, e := range elements {
		if e.IntervalEnd {
			continue
		}
		last := bytes.Repeat([]byte{0xff}, size)
		if i+1 < len(elements) && elements[i+1].IntervalEnd {
			last = before(elements[i+1].Key)
		}
		list = append(list, [2][]byte{e.Key, last})
	}
	return list
}

// before is the key before another.
func before(key []byte) []byte {
	out := slices.Clone(key)
	for i := len(out) - 1; i >= 0; i-- {
		out[i]--
		if out[i] != 0xff {
			break
		}
	}
	return out
}

// match adds the condition of a match of iptables.
func (s *registers) match(e *expr.Match) {
	switch info := e.Info.(type) {
	case *xt.Tcp:
		s.ports([][2]uint16{info.DstPorts}, info.InvFlags&xt.TcpInvDestPorts == 0)
	case *xt.Udp:
		s.ports([][2]uint16{info.DstPorts}, info.InvFlags&xt.UdpInvDestPorts == 0)
	default:
		if e.Name != "comment" {
			s.add(condition{text: "-m " + e.Name})
		}
	}
}
