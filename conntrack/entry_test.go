package conntrack

import (
	"encoding/binary"
	"math/rand/v2"
	"net"
	"net/netip"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"github.com/weirlb/weir/conntrack/tcp"
)

// build serializes a packet with correct checksums and returns it from the IP
// header on.
func build(t *testing.T, k Key, payload []byte) []byte {
	t.Helper()
	src, dst := k.Src(), k.Dst()
	var ip gopacket.NetworkLayer
	var chain []gopacket.SerializableLayer
	proto := layers.IPProtocol(k.Proto())
	if k.Family() == 4 {
		l := &layers.IPv4{Version: 4, TTL: 64, Protocol: proto, SrcIP: net.IP(src.Addr().AsSlice()), DstIP: net.IP(dst.Addr().AsSlice())}
		ip, chain = l, append(chain, l)
	} else {
		l := &layers.IPv6{Version: 6, HopLimit: 64, NextHeader: proto, SrcIP: net.IP(src.Addr().AsSlice()), DstIP: net.IP(dst.Addr().AsSlice())}
		ip, chain = l, append(chain, l)
	}
	if k.Proto() == ProtoTCP {
		l := &layers.TCP{SrcPort: layers.TCPPort(src.Port()), DstPort: layers.TCPPort(dst.Port()), ACK: true, Seq: 77, Window: 500}
		_ = l.SetNetworkLayerForChecksum(ip)
		chain = append(chain, l)
	} else {
		l := &layers.UDP{SrcPort: layers.UDPPort(src.Port()), DstPort: layers.UDPPort(dst.Port())}
		_ = l.SetNetworkLayerForChecksum(ip)
		chain = append(chain, l)
	}
	buf := gopacket.NewSerializeBuffer()
	if err := gopacket.SerializeLayers(buf, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true},
		append(chain, gopacket.Payload(payload))...); err != nil {
		t.Fatal(err)
	}
	p := buf.Bytes()
	if l4 := len(p) - len(payload) - 8; k.Proto() == ProtoUDP && p[l4+6]|p[l4+7] == 0 {
		p[l4+6], p[l4+7] = 0xff, 0xff // RFC 768; gopacket leaves 0
	}
	return p
}

// rewrite applies a recipe as a worker does.
func rewrite(p []byte, tab *Table, r Ref) {
	e := tab.Entry(r)
	l4 := 40
	if e.Key.Family() == 4 {
		l4 = 20
		binary.LittleEndian.PutUint64(p[12:], e.Addr4)
		update(p[10:], e.AddrDelta)
	} else {
		src, dst := tab.NewAddrs6(r)
		for i, w := range append(src[:], dst[:]...) {
			binary.LittleEndian.PutUint64(p[8+8*i:], w)
		}
	}
	binary.LittleEndian.PutUint32(p[l4:], e.NewPorts)
	if e.Key.Proto() == ProtoTCP {
		update(p[l4+16:], e.L4Delta)
		return
	}
	update(p[l4+6:], e.L4Delta)
	if p[l4+6]|p[l4+7] == 0 {
		p[l4+6], p[l4+7] = 0xff, 0xff
	}
}

func update(c []byte, delta uint16) {
	s := uint32(^binary.LittleEndian.Uint16(c)) + uint32(delta)
	s = s>>16 + s&0xffff
	s = s>>16 + s&0xffff
	binary.LittleEndian.PutUint16(c, ^uint16(s))
}

func randomAddrPort(rng *rand.Rand, v6 bool) netip.AddrPort {
	if !v6 {
		var a [4]byte
		binary.BigEndian.PutUint32(a[:], rng.Uint32())
		return netip.AddrPortFrom(netip.AddrFrom4(a), uint16(rng.Uint32()|1))
	}
	a := [16]byte{0: 0x20}
	binary.BigEndian.PutUint64(a[8:], rng.Uint64())
	return netip.AddrPortFrom(netip.AddrFrom16(a), uint16(rng.Uint32()|1))
}

// A packet rewritten by a recipe is the packet that its new sender would have made,
// in both directions.
func TestRecipesMakeThePacketThatTheNewSenderWouldHaveSent(t *testing.T) {
	tab := openTest(t, Config{})
	w := tab.Worker(0)
	w.Online()
	rng := rand.New(rand.NewPCG(7, 7))
	for i := range 4000 {
		v6, proto := i&1 == 1, uint8(ProtoTCP)
		if i&2 == 2 {
			proto = ProtoUDP
		}
		f := &NewFlow{
			Client: MakeKey(randomAddrPort(rng, v6), randomAddrPort(rng, v6), proto), Endpoint: randomAddrPort(rng, v6),
			Mode: ModeNAT, SNAT: randomAddrPort(rng, v6).Addr(), PortLo: 1024, PortHi: 65535,
		}
		if i&4 == 4 {
			f.Mode = ModeDNAT
		}
		r := mustCreate(t, w, f)
		payload := make([]byte, rng.IntN(9))
		for j := range payload {
			payload[j] = byte(rng.Uint32())
		}
		for _, r := range []Ref{r, r.Other()} {
			e := tab.Entry(r)
			p := build(t, e.Key, payload)
			rewrite(p, tab, r)
			want := build(t, MakeKey(tab.NewSrc(r), tab.NewDst(r), proto), payload)
			if string(p) != string(want) {
				t.Fatalf("%v -> %v:\n got %x\nwant %x", e.Key.Src(), e.Key.Dst(), p, want)
			}
		}
		if tab.NewDst(r) != f.Endpoint || tab.NewDst(r.Other()) != f.Client.Src() || tab.NewSrc(r.Other()) != f.Client.Dst() {
			t.Fatalf("recipes lead to %v and %v", tab.NewDst(r), tab.NewDst(r.Other()))
		}
		if f.Mode == ModeDNAT && tab.NewSrc(r) != f.Client.Src() {
			t.Fatalf("dnat changes the source to %v", tab.NewSrc(r))
		}
		w.Delete(r)
		w.Quiesce()
	}
}

func TestKeysHoldThePacketsBytes(t *testing.T) {
	for _, c := range []struct{ src, dst string }{
		{"10.1.2.3:1234", "192.0.2.1:80"},
		{"[2001:db8::1]:1234", "[2001:db8::2]:65535"},
		{"[::ffff:10.1.2.3]:1", "192.0.2.1:2"},
	} {
		src, dst := ap(c.src), ap(c.dst)
		k := MakeKey(src, dst, ProtoTCP)
		p := build(t, k, nil)
		var want Key
		l4 := 20
		if k.Family() == 4 {
			want.W[0] = binary.LittleEndian.Uint64(p[12:])
		} else {
			l4 = 40
			for i := range 4 {
				want.W[i] = binary.LittleEndian.Uint64(p[8+8*i:])
			}
		}
		want.W[4] = uint64(binary.LittleEndian.Uint32(p[l4:])) | ProtoTCP<<32 | uint64(k.Family())<<40
		if k != want {
			t.Errorf("%s: key %x, packet %x", c.src, k, want)
		}
		if k.Src().Addr() != src.Addr().Unmap() || k.Src().Port() != src.Port() || k.Dst() != dst || k.Proto() != ProtoTCP {
			t.Errorf("key reads %v -> %v", k.Src(), k.Dst())
		}
		back := k.Reverse()
		if back.Src() != k.Dst() || back.Dst() != k.Src() || back.Proto() != k.Proto() || back.Reverse() != k {
			t.Errorf("reverse reads %v -> %v", back.Src(), back.Dst())
		}
	}
	if k := MakeKey(ap("10.0.0.1:1"), ap("[::1]:1"), ProtoTCP); k != (Key{}) {
		t.Errorf("mixed families make key %x", k)
	}
}

func TestModesWithoutTranslationKeepTheTupleAndNameTheEndpoint(t *testing.T) {
	tab := openTest(t, Config{})
	w := tab.Worker(0)
	w.Online()
	for i, c := range []struct {
		mode     Mode
		src      netip.Addr
		endpoint netip.AddrPort
		outer6   bool
	}{
		{ModeL2DSR, netip.Addr{}, ep1, false},
		{ModeIPIP, snat, ep1, false},
		{ModeIPIP, netip.Addr{}, ep1, false},
		{ModeGUE, snat6, ep6, true},
	} {
		f := &NewFlow{Client: MakeKey(client(i), vip, ProtoTCP), Endpoint: c.endpoint, Mode: c.mode, SNAT: c.src, EndpointID: 1}
		r := mustCreate(t, w, f)
		e := tab.Entry(r)
		if e.NewPorts != uint32(f.Client.W[4]) || e.AddrDelta != 0 || e.L4Delta != 0 || e.Flags&FlagOuter6 != 0 != c.outer6 {
			t.Errorf("mode %d changes the packet: %+v", c.mode, e)
		}
		if got := tab.EndpointAddr(r).Addr(); got != c.endpoint.Addr() {
			t.Errorf("mode %d: endpoint %v", c.mode, got)
		}
		if c.src.IsValid() && tab.NewSrc(r).Addr() != c.src {
			t.Errorf("mode %d: outer source %v", c.mode, tab.NewSrc(r))
		}
		if tab.lookup(MakeKey(c.endpoint, f.Client.Src(), ProtoTCP)) != 0 {
			t.Errorf("mode %d has a reverse entry", c.mode)
		}
	}
	if !w.Delete(1) || tab.EndpointFlows(1) != 3 {
		t.Errorf("endpoint has %d flows after one of 4 is deleted", tab.EndpointFlows(1))
	}
	checkTable(t, tab)
}

func TestFlowsThatMakeNoSenseAreRefused(t *testing.T) {
	tab := openTest(t, Config{})
	w := tab.Worker(0)
	w.Online()
	for name, change := range map[string]func(*NewFlow){
		"endpoint of the other family": func(f *NewFlow) { f.Endpoint = ep6 },
		"snat of the other family":     func(f *NewFlow) { f.SNAT = snat6 },
		"no snat address":              func(f *NewFlow) { f.SNAT = netip.Addr{} },
		"empty port range":             func(f *NewFlow) { f.PortLo, f.PortHi = 10, 9 },
		"port 0":                       func(f *NewFlow) { f.PortLo = 0 },
		"no tuple":                     func(f *NewFlow) { f.Client = Key{} },
		"no mode":                      func(f *NewFlow) { f.Mode = 0 },
	} {
		f := natFlow(1)
		change(f)
		if r, o := w.Create(f); r != 0 || o != Invalid {
			t.Errorf("%s: entry %d, outcome %d", name, r, o)
		}
	}
	mustCreate(t, w, natFlow(1))
	checkTable(t, tab)
	checkFree(t, tab)
}

// Two frontends of one endpoint cannot be told apart in the answers when the client
// uses one port for both.
func TestDNATRefusesAClientPortThatIsInUseTowardsTheEndpoint(t *testing.T) {
	tab := openTest(t, Config{})
	w := tab.Worker(0)
	w.Online()
	flow := func(frontend string) *NewFlow {
		return &NewFlow{Client: MakeKey(client(1), ap(frontend), ProtoTCP), Endpoint: ep1, Mode: ModeDNAT}
	}
	r := mustCreate(t, w, flow("192.0.2.1:80"))
	if _, o := w.Create(flow("192.0.2.2:80")); o != NoPort {
		t.Fatalf("outcome %d, want no port", o)
	}
	tab.TrackTCP(r, &tcp.Segment{Flags: tcp.FlagRST, Seq: 1}, 1)
	second := mustCreate(t, w, flow("192.0.2.2:80"))
	if tab.lookup(flow("192.0.2.1:80").Client) != 0 || tab.lookup(flow("192.0.2.2:80").Client) != second {
		t.Fatal("the flow that is over is still there")
	}
}
