package worker

import (
	"bytes"
	"fmt"
	"maps"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/affinity"
	"github.com/weirlb/weir/lb/header"
	"github.com/weirlb/weir/lb/table"
)

// plainID has the server's name in bytes 1 to 4 of a connection ID.
var plainID = table.QUICConnectionID{Offset: 1, Length: 4, Marked: true}

// quicService publishes ns/web, whose UDP port goes by connection IDs: its pools have
// the endpoints first to first+n-1 of each family, and it lists listed more.
func (b *bench) quicService(cid table.QUICConnectionID, mode conntrack.Mode, n, listed int) {
	b.t.Helper()
	s := table.Service{Name: "ns/web", Policy: &table.Policy{QUICConnectionID: cid}, Pools: make([]table.Pool, 2)}
	for i, a := range []netip.Addr{endpoint4, endpoint6} {
		for at := range n + listed {
			e := ap(a, 8080)
			if at < n {
				s.Pools[i].Endpoints = append(s.Pools[i].Endpoints, table.Endpoint{AddrPort: e})
			} else {
				s.Listed = append(s.Listed, table.ListedEndpoint{AddrPort: e, Proto: header.ProtoUDP})
			}
			a = a.Next()
		}
	}
	for i, a := range []netip.Addr{node4, node6} {
		s.Frontends = append(s.Frontends, table.Frontend{AddrPort: ap(a, 80), Proto: header.ProtoUDP, Pool: i, Mode: mode})
	}
	if _, err := b.lb.tables.Apply([]table.Service{s}, nil); err != nil {
		b.t.Fatal(err)
	}
}

// longQUIC is a datagram with a long header, shortQUIC one with a short header.
func longQUIC(dst, src string) []byte { return longQUICOf(1, dst, src) }

func longQUICOf(version byte, dst, src string) []byte {
	return fmt.Appendf([]byte{0xc0, 0, 0, 0, version}, "%c%s%c%sencrypted", len(dst), dst, len(src), src)
}

func shortQUIC(dst string) []byte { return append([]byte{0x5f}, dst+"encrypted"...) }

// quicFrom is a client's datagram from a port.
func quicFrom(v6 bool, port uint16, datagram []byte) packet {
	p := from(v6, header.ProtoUDP, port)
	p.data = datagram
	return p
}

// answerTo sends an answer of the endpoint on p's flow, which the client gets.
func (b *bench) answerTo(p packet, datagram []byte) {
	b.t.Helper()
	k := conntrack.MakeKey(p.src, p.dst, p.proto)
	ref := b.w.conntrack.Lookup(b.lb.flows.Hash(&k), &k)
	reverse := b.lb.flows.Entry(ref.Other()).Key
	a := packet{srcMAC: macServer, dstMAC: macWeirB, src: reverse.Src(), dst: reverse.Dst(), proto: p.proto, data: datagram, df: true}
	got := b.one(portServer, a.build(b.t), portClient)
	a.srcMAC, a.dstMAC, a.ttl = macWeir, macClient, 63
	a.src, a.dst = p.dst, p.src
	if want := a.build(b.t); !bytes.Equal(got, want) {
		b.t.Fatalf("to the client:\n got %x\nwant %x", got, want)
	}
}

// spread is to how many endpoints the datagram of 16 new tuples goes.
func (b *bench) spread(v6 bool, port uint16, datagram []byte) map[netip.AddrPort]int {
	b.t.Helper()
	to := map[netip.AddrPort]int{}
	for i := range uint16(16) {
		p := quicFrom(v6, port+i, datagram)
		if i%2 == 1 { // another address, too
			p.src = ap(map[bool]netip.Addr{false: client4.Next(), true: client6.Next()}[v6], port+i)
		}
		to[b.chosen(p)]++
	}
	return to
}

// handshake opens a flow and has the endpoint call itself id, and returns it.
func (b *bench) handshake(v6 bool, port uint16, id string) netip.AddrPort {
	b.t.Helper()
	p := quicFrom(v6, port, longQUIC("chosen-by-client", "client"))
	e := b.chosen(p)
	b.answerTo(p, longQUIC("client", id))
	return e
}

func TestAQUICConnectionKeepsItsServer(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		b := newBench(t)
		b.quicService(plainID, conntrack.ModeNAT, 20, 0)
		const id = "\x07srv1-random"
		e := b.handshake(v6, 1000, id)
		for name, datagram := range map[string][]byte{
			"short header":            shortQUIC("\x07srv1-random"),
			"other ID of the server":  shortQUIC("\x1fsrv1-else.."),
			"as short as can be":      []byte("\x40\x07srv1"),
			"long header":             longQUIC(id, "client"),
			"long header, no version": longQUICOf(0xfa, id, ""),
		} {
			if to := b.spread(v6, 2000, datagram); to[e] != 16 {
				t.Errorf("v6=%v, %s: went to %v, the server is %v", v6, name, to, e)
			}
			b.lb.flows.Range(func(r conntrack.Ref) bool { b.w.conntrack.Delete(r); return true })
		}
		for name, datagram := range map[string][]byte{
			"another server":            shortQUIC("\x07srv2-random"),
			"another configuration":     shortQUIC("\x27srv1-random"),
			"no configuration":          shortQUIC("\xe7srv1-random"),
			"too short":                 []byte("\x40\x07srv"),
			"long header, ID too short": longQUIC("\x07srv", "client"),
			"no fixed bit":              append([]byte{0x1f}, id...),
			"no QUIC":                   []byte("not QUIC at all: a line of text"),
			"no bytes":                  {},
		} {
			if to := b.spread(v6, 2000, datagram); to[e] == 16 {
				t.Errorf("v6=%v, %s: all went to %v", v6, name, e)
			}
			b.lb.flows.Range(func(r conntrack.Ref) bool { b.w.conntrack.Delete(r); return true })
		}
		// The other family's endpoints have other addresses.
		if to := b.spread(!v6, 2000, shortQUIC(id)); len(to) < 2 {
			t.Errorf("v6=%v: the other family's went to %v", v6, to)
		}
		b.framesHome()
	}
}

// The datagram of a connection that goes on from elsewhere is translated as any.
func TestAMovedQUICConnectionIsTranslated(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		for _, tag := range []bool{false, true} {
			b := newBench(t)
			b.quicService(plainID, conntrack.ModeNAT, 1, 0) // the one whose MAC address is known
			e := b.handshake(v6, 1000, "\x00srv1")
			b.quicService(plainID, conntrack.ModeNAT, 20, 0)
			for port := range uint16(20) {
				p := quicFrom(v6, 3000+port, shortQUIC("\x00srv1+"))
				in := p.build(t)
				if tag {
					in = tagged(in, unix.ETH_P_8021Q, 100)
				}
				f := b.one(portClient, in, portServer)
				k := conntrack.MakeKey(p.src, p.dst, p.proto)
				want := p
				want.srcMAC, want.dstMAC, want.ttl = macWeirB, macServer, 63
				want.src, want.dst = b.lb.flows.NewSrc(b.w.conntrack.Lookup(b.lb.flows.Hash(&k), &k)), e
				expected := want.build(t)
				if !bytes.Equal(f, expected) {
					t.Fatalf("v6=%v:\n got %x\nwant %x", v6, f, expected)
				}
				if !tag {
					b.answerTo(p, shortQUIC("client"))
				}
			}
			b.framesHome()
		}
	}
}

func TestServersAreLearnedFromTheirLongHeadersOnly(t *testing.T) {
	const id = "\x00srv1-random"
	for name, answer := range map[string][]byte{
		"Version Negotiation": longQUICOf(0, "client", id),
		"short header":        shortQUIC(id),
		"its destination ID":  longQUIC(id, "client"),
		"no configuration":    longQUIC("client", "\xe0srv1-random"),
		"too short":           longQUIC("client", "\x00srv"),
		"no ID":               longQUIC("client", ""),
		"cut":                 longQUIC("client", id)[:16],
		"no fixed bit":        append([]byte{0x80}, longQUIC("client", id)[1:]...),
		"no bytes":            {},
	} {
		b := newBench(t)
		b.quicService(plainID, conntrack.ModeNAT, 20, 0)
		p := quicFrom(false, 1000, longQUIC("chosen-by-client", id)) // nor is the client believed
		b.chosen(p)
		b.answerTo(p, answer)
		if to := b.spread(false, 2000, shortQUIC(id)); len(to) < 2 {
			t.Errorf("%s: went to %v", name, to)
		}
		// A handshake packet on the established flow is read all the same.
		b.answerTo(p, longQUIC("client", id))
		if to := b.spread(false, 4000, shortQUIC(id)); len(to) != 1 {
			t.Errorf("%s: then went to %v", name, to)
		}
		b.framesHome()
	}
}

func TestANameStaysWithItsServerWhileThatIsThere(t *testing.T) {
	const id = "\x00srv1-random"
	b := newBench(t)
	b.quicService(plainID, conntrack.ModeNAT, 20, 0)
	first := b.handshake(false, 1000, id)
	var other netip.AddrPort
	for port := uint16(1001); other == first || !other.IsValid(); port++ {
		other = b.handshake(false, port, id) // claims the same
	}
	if to := b.spread(false, 2000, shortQUIC(id)); to[first] != 16 {
		t.Errorf("went to %v, the server is %v", to, first)
	}
	// Seconds later it is forgotten, a day after its last handshake.
	b.w.tick += (cidSeconds + 1) * secondTicks
	k := conntrack.MakeKey(quicFrom(false, 1, nil).src, ap(node4, 80), header.ProtoUDP)
	fk := table.DestinationKey(&k.W)
	fe := b.w.snapshot.Lookup(&fk)
	key, _ := fe.CIDKey([]byte(id))
	if n, ok := b.w.cidMap.Get(key, b.w.tick/secondTicks, cidSeconds); ok {
		t.Errorf("still known as %d", n)
	}
}

func TestAServerThatIsGoneOrTerminating(t *testing.T) {
	const id = "\x00srv1-random"
	b := newBench(t)
	b.quicService(plainID, conntrack.ModeNAT, 20, 0)
	last := ap(endpoint4, 8080)
	for range 19 {
		last = ap(last.Addr().Next(), 8080)
	}
	port := uint16(1000)
	for b.handshake(false, port, "\x00other") != last {
		port++
	}
	p := quicFrom(false, port, nil)
	b.answerTo(p, longQUIC("client", id))

	b.quicService(plainID, conntrack.ModeNAT, 10, 10) // terminating: gets no new clients
	if to := b.spread(false, 2000, shortQUIC(id)); to[last] != 16 {
		t.Errorf("terminating: went to %v, the server is %v", to, last)
	}
	b.quicService(plainID, conntrack.ModeNAT, 0, 20) // as all others
	if to := b.spread(false, 3000, shortQUIC(id)); to[last] != 16 {
		t.Errorf("with all others terminating: went to %v, the server is %v", to, last)
	}
	b.one(portClient, quicFrom(false, 3500, shortQUIC("\x00unknown")).build(t), portClient) // refused
	if b.drops()["no-endpoint"] != 1 {
		t.Errorf("counted %v", b.drops())
	}
	b.quicService(plainID, conntrack.ModeNAT, 19, 0) // gone
	if to := b.spread(false, 4000, shortQUIC(id)); to[last] != 0 || len(to) < 2 {
		t.Errorf("gone: went to %v", to)
	}
	// Another one has the name after it.
	heir := b.handshake(false, 5000, id)
	if to := b.spread(false, 6000, shortQUIC(id)); to[heir] != 16 {
		t.Errorf("went to %v, the server is %v now", to, heir)
	}
	b.framesHome()
}

func TestServersByOffset(t *testing.T) {
	const id = "0123456789abcdefghij" // the longest there is
	for _, cid := range []table.QUICConnectionID{{Offset: 0, Length: 20}, {Offset: 19, Length: 1}, {Offset: 3, Length: 9}} {
		b := newBench(t)
		b.quicService(cid, conntrack.ModeNAT, 20, 0)
		e := b.handshake(false, 1000, id)
		if to := b.spread(false, 2000, shortQUIC(id)); to[e] != 16 {
			t.Errorf("%v: went to %v, the server is %v", cid, to, e)
		}
		for at := range len(id) { // each byte counts, or does not
			other := []byte(id)
			other[at] = '#'
			named := at >= int(cid.Offset) && at < int(cid.Offset)+int(cid.Length)
			k := conntrack.MakeKey(quicFrom(false, 1, nil).src, ap(node4, 80), header.ProtoUDP)
			fk := table.DestinationKey(&k.W)
			fe := b.w.snapshot.Lookup(&fk)
			one, ok1 := fe.CIDKey([]byte(id))
			two, ok2 := fe.CIDKey(other)
			if !ok1 || !ok2 || (one != two) != named {
				t.Errorf("%v: byte %d: %x %v and %x %v", cid, at, one, ok1, two, ok2)
			}
		}
	}
}

// Without translation the answers do not pass Weir: nothing is learned, and the
// choice is the usual one.
func TestQUICInDSRModesHasTheUsualChoice(t *testing.T) {
	b := newBench(t)
	b.quicService(plainID, conntrack.ModeL2DSR, 20, 0)
	with := b.spread(false, 2000, shortQUIC("\x00srv1-random"))
	b = newBench(t)
	b.quicService(table.QUICConnectionID{}, conntrack.ModeL2DSR, 20, 0)
	if without := b.spread(false, 2000, shortQUIC("\x00srv1-random")); !maps.Equal(with, without) || len(with) < 2 {
		t.Errorf("went to %v, without connection IDs to %v", with, without)
	}
}

// What one worker learns all of them know.
func TestWorkersKnowTheSameServers(t *testing.T) {
	first, second := pair(t)
	first.quicService(plainID, conntrack.ModeNAT, 20, 0)
	const id = "\x00srv1-random"
	e := first.handshake(false, 1000, id)
	for port := range uint16(30) {
		p := quicFrom(false, 2000+port, shortQUIC(id))
		second.give(portClient, p.build(t))
		second.w.beginRound()
		second.w.receive()
		second.w.endRound()
		k := conntrack.MakeKey(p.src, p.dst, p.proto)
		ref := first.w.conntrack.Lookup(first.lb.flows.Hash(&k), &k)
		if ref == 0 || first.lb.flows.EndpointAddr(ref) != e {
			t.Fatalf("flow %d does not go to %v", ref, e)
		}
	}
}

// A table that is full forgets who has been away the longest; nothing else happens.
func TestMoreServersThanThereIsRoomFor(t *testing.T) {
	b := newBench(t)
	b.lb.servers = affinity.New(8, [2]uint64{1, 2})
	b.w.cidMap = b.lb.servers
	b.quicService(plainID, conntrack.ModeNAT, 20, 0)
	p := quicFrom(false, 1000, longQUIC("chosen-by-client", "client"))
	e := b.chosen(p)
	known := 0
	for i := range 100 {
		b.w.tick += secondTicks
		b.answerTo(p, longQUIC("client", fmt.Sprintf("\x00%04d", i)))
	}
	for i := range uint16(100) {
		k := conntrack.MakeKey(p.src, p.dst, p.proto)
		fk := table.DestinationKey(&k.W)
		key, _ := b.w.snapshot.Lookup(&fk).CIDKey(fmt.Appendf(nil, "\x00%04d", i))
		if _, ok := b.w.cidMap.Get(key, b.w.tick/secondTicks, cidSeconds); ok {
			known++
		}
	}
	if known != 8 {
		t.Errorf("%d names known", known)
	}
	if to := b.spread(false, 2000, shortQUIC("\x000099")); to[e] != 16 {
		t.Errorf("the last one: went to %v, the server is %v", to, e)
	}
	b.framesHome()
}

func TestNoAllocationForConnectionIDs(t *testing.T) {
	b := newBench(t)
	b.quicService(plainID, conntrack.ModeNAT, 20, 0)
	const id = "\x00srv1-random"
	b.handshake(false, 1000, id)
	k := conntrack.MakeKey(from(false, header.ProtoUDP, 1000).src, ap(node4, 80), header.ProtoUDP)
	fk := table.DestinationKey(&k.W)
	fe := b.w.snapshot.Lookup(&fk)
	f := quicFrom(false, 1000, longQUIC(id, id)).build(t)
	p := &b.w.batch.pkts[0]
	d := &p.desc[0]
	d.Addr, d.Len = b.lb.memory.Addr(0), uint32(len(f))
	copy(b.w.area[d.Addr:], f)
	p.data = b.w.frame(p)
	header.Parse(f, len(f), &p.Packet)
	ref := b.w.conntrack.Lookup(b.lb.flows.Hash(&k), &k).Other()
	if n := testing.AllocsPerRun(100, func() {
		if b.w.endpointByCID(p, fe) == nil || !b.w.mayCarryCID(p) {
			t.Fatal("not known")
		}
		b.w.learnCID(p, b.lb.flows.Conn(ref), ref)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
