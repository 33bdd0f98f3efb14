package steer

import (
	"encoding/binary"
	"maps"
	"net/netip"
	"slices"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/conntrack/flowstate"
	"github.com/weirlb/weir/lb/header"
	"github.com/weirlb/weir/lb/route"
)

// flowKind is what flows of a test have in common.
type flowKind struct {
	v6      bool
	proto   uint8
	mode    conntrack.Mode
	reverse bool // packets of the endpoint
	outer6  bool // the outer header is an IPv6 one
}

func (k flowKind) String() string {
	name := "IPv4"
	if k.v6 {
		name = "IPv6"
	}
	name += map[uint8]string{unix.IPPROTO_TCP: "/TCP", unix.IPPROTO_UDP: "/UDP"}[k.proto]
	name += "/" + map[conntrack.Mode]string{
		conntrack.ModeNAT: "nat", conntrack.ModeDNAT: "dnat", conntrack.ModeL2DSR: "l2dsr", conntrack.ModeIPIP: "ipip", conntrack.ModeGUE: "gue",
	}[k.mode]
	if k.reverse {
		name += "/reverse"
	}
	if k.outer6 {
		name += "/outer IPv6"
	}
	return name
}

// outerLen is the length of the outer header.
func (k flowKind) outerLen() uint32 {
	if k.mode != conntrack.ModeIPIP && k.mode != conntrack.ModeGUE {
		return 0
	}
	return uint32((&header.Encap{V6: k.outer6, GUE: k.mode == conntrack.ModeGUE}).Len())
}

// takes reports whether the programs forward packets of such flows. The sum of GUE over IPv6 is
// over the whole packet: the packet loop computes it.
func (k flowKind) takes() bool { return !k.outer6 || k.mode != conntrack.ModeGUE }

// takes is the same of a flow with tags. The kernel takes a tag out of the frame before TCX, but
// not in a test run.
func (c *flowCase) takes(h *hook) bool { return c.flowKind.takes() && !(h.tcx && c.tagged) }

// flowKinds are the kinds of flow.
func flowKinds() (all []flowKind) {
	for _, v6 := range []bool{false, true} {
		for _, proto := range []uint8{unix.IPPROTO_TCP, unix.IPPROTO_UDP} {
			for _, mode := range []conntrack.Mode{conntrack.ModeNAT, conntrack.ModeDNAT} {
				all = append(all, flowKind{v6: v6, proto: proto, mode: mode}, flowKind{v6: v6, proto: proto, mode: mode, reverse: true})
			}
			all = append(all, flowKind{v6: v6, proto: proto, mode: conntrack.ModeL2DSR})
			for _, mode := range []conntrack.Mode{conntrack.ModeIPIP, conntrack.ModeGUE} {
				all = append(all, flowKind{v6: v6, proto: proto, mode: mode}, flowKind{v6: v6, proto: proto, mode: mode, outer6: true})
			}
		}
	}
	return all
}

// flowCase is a flow, with all that the programs make depend on it.
type flowCase struct {
	flowKind
	watched     bool
	state       flowstate.State
	mtu         uint32
	hop         uint32
	gone        bool // the endpoint is
	serviceGone bool
	stale       bool // the adjacency has another stamp by now
	settled     bool
	port        int    // by which packets leave: a VLAN's has a tag
	vlans       bool   // the interface that packets arrive at carries VLANs
	tag         uint32 // of arriving packets; see arriving
	tagged      bool
}

// arriving are tags of VLANs that arrive.
var arriving = [...]uint32{unix.ETH_P_8021Q<<16 | 100, unix.ETH_P_8021AD<<16 | 200}

// drawTags draws the tags of arriving and of leaving packets.
func (c *flowCase) drawTags(t *rapid.T) {
	c.port, c.vlans = 1, rapid.Bool().Draw(t, "carries VLANs")
	if c.reverse {
		c.port = 0
	}
	if rapid.SampledFrom([]bool{true, true, false}).Draw(t, "no tags") {
		return
	}
	c.port = rapid.SampledFrom([]int{c.port, 2, 3}).Draw(t, "port")
	tags := []uint32{unix.ETH_P_8021Q<<16 | 5<<13} // a priority
	if c.vlans {
		tags = append(tags, arriving[:]...)
	}
	if c.tagged = rapid.Bool().Draw(t, "tagged"); c.tagged {
		c.tag = rapid.SampledFrom(tags).Draw(t, "tag")
	}
}

// resized says that the frame changes its length, or its tag.
func (c *flowCase) resized() bool { return c.tagged || rigTags[c.port] != 0 }

// steady says that a plain packet of the flow is to be forwarded in the kernel.
func (c *flowCase) steady(r *flowRig) bool {
	_, s := r.router.Adjacencies()[c.hop].Dst()
	return c.settled && !c.stale && !c.gone && !c.serviceGone && s == route.Valid
}

func drawAddr(t *rapid.T, v6 bool, net4 netip.Prefix, name string) netip.Addr {
	n := rapid.Uint32Range(1, 1<<16-2).Draw(t, name)
	if v6 {
		b := netip.MustParseAddr("2001:db8::").As16()
		copy(b[4:], net4.Addr().AsSlice())
		binary.BigEndian.PutUint64(b[8:], uint64(n)*0x9e3779b97f4a7c15)
		return netip.AddrFrom16(b)
	}
	b := net4.Addr().As4()
	binary.BigEndian.PutUint32(b[:], binary.BigEndian.Uint32(b[:])+n)
	return netip.AddrFrom4(b)
}

// drawFlow draws a flow and makes it. ref is the entry of its packets.
func (r *flowRig) drawFlow(t *rapid.T, kind flowKind) (c flowCase, ref conntrack.Ref) {
	c.flowKind = kind
	rare := func(name string) bool { return rapid.IntRange(0, 9).Draw(t, name) == 0 }
	c.watched = c.proto == unix.IPPROTO_UDP && rapid.Bool().Draw(t, "watched")
	c.state = flowstate.Established
	if c.proto == unix.IPPROTO_UDP {
		c.state = flowstate.Stream
	}
	if rare("other state") {
		c.state = flowstate.State(rapid.IntRange(1, 11).Draw(t, "state"))
	}
	c.gone, c.serviceGone, c.stale = rare("endpoint gone"), rare("Service gone"), rare("stale")
	c.mtu = rapid.SampledFrom([]uint32{0xffff, 1500, 1400, 600}).Draw(t, "route's MTU")
	c.drawTags(t)
	c.hop = r.nextHop(c.port, rigHop(c.port, rapid.IntRange(0, len(rigMTUs)-1).Draw(t, "MTU")))
	if c.port == 1 && rare("failed") {
		c.hop = r.nextHop(1, rigFailed)
	}
	endpoint6 := c.v6
	if c.outerLen() != 0 {
		endpoint6 = c.outer6
	}
	service := drawAddr(t, c.v6, netip.MustParsePrefix("203.0.113.0/24"), "frontend")
	f := conntrack.NewFlow{
		Client: conntrack.MakeKey(
			netip.AddrPortFrom(drawAddr(t, c.v6, rigNetwork[0], "client"), rapid.Uint16Range(1, 65535).Draw(t, "client's port")),
			netip.AddrPortFrom(service, rapid.Uint16Range(1, 65535).Draw(t, "port")), c.proto),
		Endpoint: netip.AddrPortFrom(drawAddr(t, endpoint6, rigNetwork[1], "endpoint"), rapid.Uint16Range(1, 65535).Draw(t, "endpoint's port")),
		Mode:     c.mode, Watched: c.watched, Tick: r.flows.Tick(), Seq: rapid.Uint32().Draw(t, "sequence number"),
		EndpointID: rapid.Uint32Range(0, 1023).Draw(t, "endpoint's number"), ServiceID: rapid.Uint32Range(0, 63).Draw(t, "Service"),
	}
	if c.mode == conntrack.ModeNAT {
		f.SNAT, f.PortLo, f.PortHi = drawAddr(t, c.v6, netip.MustParsePrefix("192.0.2.0/24"), "SNAT"), 1024, 65535
	}
	if c.outerLen() != 0 {
		f.SNAT = drawAddr(t, c.outer6, netip.MustParsePrefix("192.0.2.0/24"), "outer source")
	}
	ref, outcome := r.maker.Create(&f)
	if outcome != conntrack.Created {
		t.Fatalf("create: %v", outcome)
	}
	r.setState(ref, c.state)
	w := r.word(c.hop, c.mtu)
	r.flows.Settle(ref, w)
	if !f.Mode.DSR() {
		r.flows.Settle(ref.Other(), w)
	}
	if c.reverse {
		ref = ref.Other()
	}
	c.settled = r.flows.NextHop(ref) == w
	return c, ref
}

// segment is a packet of a flow, with the field that was spoiled in it.
type segment struct {
	frame   []byte
	spoiled string
	partial bool // the checksum is the pseudo header's sum
	alike   bool // so it is, but the checksum is whole
	l4      int
}

const (
	noChecksum = iota
	wholeChecksum
	partialChecksum
	alikeChecksum
)

// drawSegment draws a packet of entry ref.
func (r *flowRig) drawSegment(t *rapid.T, c *flowCase, ref conntrack.Ref) segment {
	k := r.flows.Entry(ref).Tuple()
	eth := layers.Ethernet{SrcMAC: otherMAC, DstMAC: ownMAC, EthernetType: layers.EthernetTypeIPv4}
	proto, ttl := layers.IPProtocol(c.proto), rapid.Uint8Range(2, 255).Draw(t, "TTL")
	s := segment{l4: 34}
	var l3 gopacket.SerializableLayer
	var network gopacket.NetworkLayer
	if c.v6 {
		ip := &layers.IPv6{Version: 6, HopLimit: ttl, NextHeader: proto, SrcIP: k.Src().Addr().AsSlice(), DstIP: k.Dst().Addr().AsSlice(), FlowLabel: rapid.Uint32Range(0, 1<<20-1).Draw(t, "label")}
		l3, network, eth.EthernetType, s.l4 = ip, ip, layers.EthernetTypeIPv6, 54
	} else {
		ip := &layers.IPv4{Version: 4, TTL: ttl, Protocol: proto, SrcIP: k.Src().Addr().AsSlice(), DstIP: k.Dst().Addr().AsSlice(), TOS: rapid.Uint8().Draw(t, "TOS"), Id: rapid.Uint16().Draw(t, "ID")}
		if rapid.Bool().Draw(t, "DF") {
			ip.Flags = layers.IPv4DontFragment
		}
		l3, network = ip, ip
	}
	payload := rapid.SliceOfN(rapid.Byte(), 1, 40).Draw(t, "payload")
	if n := rapid.SampledFrom([]int{0, 0, 500, 1300, 1360, 1420, 1440, 2500}).Draw(t, "length"); n > 0 {
		payload = append(payload, make([]byte, n)...)
	}
	if rapid.IntRange(0, 4).Draw(t, "empty") == 0 {
		payload = nil
	}
	var l4 gopacket.SerializableLayer
	if c.proto == unix.IPPROTO_TCP {
		tcp := &layers.TCP{SrcPort: layers.TCPPort(k.Src().Port()), DstPort: layers.TCPPort(k.Dst().Port()), ACK: true, PSH: rapid.Bool().Draw(t, "PSH"), Window: rapid.Uint16().Draw(t, "window")}
		numbers := r.connCell(ref)[connNumbers:]
		near := func(name string) uint32 {
			return rapid.SampledFrom([]uint32{0, 1000, 60000, 1 << 20, 1 << 24, 1 << 31, ^uint32(99)}).Draw(t, name)
		}
		tcp.Seq, tcp.Ack = binary.NativeEndian.Uint32(numbers)+near("near"), binary.NativeEndian.Uint32(numbers[4:])+near("acknowledged")
		if !ref.Forward() {
			tcp.Seq, tcp.Ack = tcp.Ack, tcp.Seq
		}
		if rapid.Bool().Draw(t, "timestamps") {
			tcp.Options = []layers.TCPOption{{OptionType: 8, OptionLength: 10, OptionData: make([]byte, 8)}, {OptionType: 1}, {OptionType: 1}}
		}
		mustDraw(t, tcp.SetNetworkLayerForChecksum(network))
		l4 = tcp
	} else {
		udp := &layers.UDP{SrcPort: layers.UDPPort(k.Src().Port()), DstPort: layers.UDPPort(k.Dst().Port())}
		mustDraw(t, udp.SetNetworkLayerForChecksum(network))
		l4 = udp
	}
	buf := gopacket.NewSerializeBuffer()
	mustDraw(t, gopacket.SerializeLayers(buf, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, &eth, l3, l4, gopacket.Payload(payload)))
	s.frame = buf.Bytes()
	switch rapid.SampledFrom([]int{wholeChecksum, wholeChecksum, wholeChecksum, noChecksum, partialChecksum, alikeChecksum}).Draw(t, "checksum") {
	case noChecksum:
		if c.proto == unix.IPPROTO_UDP {
			copy(s.frame[s.l4+6:], []byte{0, 0})
		}
	case partialChecksum:
		s.makePartial(c)
	case alikeChecksum:
		s.makeAlike(c)
	}
	if rapid.IntRange(0, 2).Draw(t, "spoil") == 0 {
		s.spoil(t, c)
	}
	s.alike = !s.partial && s.looksPartial(c)
	if c.tagged && len(s.frame) >= 14 {
		s.frame = slices.Insert(s.frame, 12, binary.BigEndian.AppendUint32(nil, c.tag)...)
		s.l4 += 4
	}
	return s
}

// spoil changes one field of the packet.
func (s *segment) spoil(t *rapid.T, c *flowCase) {
	f, ip := s.frame, s.frame[14:]
	spoils := map[string]func(){
		"destination MAC": func() { f[rapid.IntRange(0, 5).Draw(t, "byte")] ^= 1 },
		"EtherType":       func() { f[12] ^= 1 << rapid.IntRange(0, 7).Draw(t, "bit") },
		"version":         func() { ip[0] ^= 1 << rapid.IntRange(0, 7).Draw(t, "bit") },
		"ports":           func() { f[s.l4+rapid.IntRange(0, 3).Draw(t, "byte")] ^= 1 << rapid.IntRange(0, 7).Draw(t, "bit") },
		"checksum":        func() { f[s.l4+checksumOffset(c.proto)] ^= 1; s.partial = false },
		"cut":             func() { s.frame = f[:rapid.IntRange(14, len(f)-1).Draw(t, "length")] },
		"padding":         func() { s.frame = append(f, make([]byte, rapid.IntRange(1, 30).Draw(t, "padding"))...) },
		"any byte": func() {
			f[rapid.IntRange(0, min(len(f), 100)-1).Draw(t, "offset")] ^= 1 << rapid.IntRange(0, 7).Draw(t, "bit")
		},
	}
	if c.v6 {
		spoils["TTL"] = func() { ip[7] = rapid.Uint8Range(0, 1).Draw(t, "TTL") }
		spoils["next header"] = func() { ip[6] = rapid.Uint8().Draw(t, "next header") }
		spoils["length"] = func() { binary.BigEndian.PutUint16(ip[4:], rapid.Uint16().Draw(t, "length")) }
		spoils["source"] = func() {
			copy(ip[8:], netip.MustParseAddr(rapid.SampledFrom([]string{"::1", "::", "ff02::1", "::ffff:1.2.3.4"}).Draw(t, "source")).AsSlice())
		}
	} else {
		spoils["TTL"] = func() { ip[8] = rapid.Uint8Range(0, 1).Draw(t, "TTL"); sum4(ip) }
		spoils["protocol"] = func() { ip[9] = rapid.Uint8().Draw(t, "protocol"); sum4(ip) }
		spoils["length"] = func() { binary.BigEndian.PutUint16(ip[2:], rapid.Uint16().Draw(t, "length")); sum4(ip) }
		spoils["fragment"] = func() { binary.BigEndian.PutUint16(ip[6:], 1<<rapid.IntRange(0, 15).Draw(t, "bit")); sum4(ip) }
		spoils["header checksum"] = func() { ip[10] ^= 1 << rapid.IntRange(0, 7).Draw(t, "bit") }
		spoils["source"] = func() { ip[12] = rapid.SampledFrom([]byte{0, 127, 224, 255}).Draw(t, "source"); sum4(ip) }
	}
	if c.proto == unix.IPPROTO_TCP {
		spoils["flags"] = func() { f[s.l4+13] ^= 1 << rapid.IntRange(0, 7).Draw(t, "bit") }
		spoils["data offset"] = func() { f[s.l4+12] ^= 1 << rapid.IntRange(4, 7).Draw(t, "bit") }
	} else {
		spoils["UDP length"] = func() { binary.BigEndian.PutUint16(f[s.l4+4:], rapid.Uint16().Draw(t, "length")) }
	}
	s.spoiled = rapid.SampledFrom(slices.Sorted(maps.Keys(spoils))).Draw(t, "field")
	spoils[s.spoiled]()
}

// sum4 makes the checksum of an IPv4 header without options right.
func sum4(ip []byte) {
	copy(ip[10:], []byte{0, 0})
	binary.LittleEndian.PutUint16(ip[10:], header.Checksum(0, ip[:20]))
}

// plain says that nothing about the packet is the packet loop's alone, at the hook.
func (s *segment) plain(r *flowRig, h *hook, c *flowCase) bool {
	if !c.takes(h) || s.partial && !h.tcx || (s.partial || s.alike) && (h.direct && c.v6 || h.tcx && c.outerLen() != 0) {
		return false
	}
	if s.spoiled != "" && s.spoiled != "padding" && s.spoiled != "checksum" {
		return false
	}
	if c.watched && c.reverse && (len(s.frame) == s.l4+8 || s.frame[s.l4+8]&0x80 != 0) {
		return false
	}
	ip := s.frame[14:]
	if c.tagged {
		ip = s.frame[18:]
	}
	n := uint32(binary.BigEndian.Uint16(ip[2:]))
	if c.v6 {
		n = 40 + uint32(binary.BigEndian.Uint16(ip[4:]))
	}
	return n+c.outerLen() <= min(c.mtu, r.router.Adjacencies()[c.hop].MTU())
}

func mustDraw(t *rapid.T, err error) {
	if err != nil {
		t.Fatalf("%v", err)
	}
}
