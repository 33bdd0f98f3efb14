package worker

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/conntrack/flowstate"
	"github.com/weirlb/weir/lb/denylist"
	"github.com/weirlb/weir/lb/header"
	"github.com/weirlb/weir/lb/table"
)

// talkers are the next packets of both ends of a TCP connection through Weir.
type talkers struct {
	b                *bench
	client, endpoint packet
	port             [2]byte // the SNAT port
}

func newTalkers(b *bench, v6 bool) *talkers {
	b.t.Helper()
	c := &talkers{b: b}
	c.client, c.endpoint = b.connected(v6)
	c.port = [2]byte{byte(c.endpoint.dst.Port() >> 8), byte(c.endpoint.dst.Port())}
	c.talk(3)
	return c
}

// talk sends data from each end n times, a second apart. Each packet must reach the
// other end, at the same SNAT port.
func (c *talkers) talk(n int) {
	c.b.t.Helper()
	for range n {
		c.b.w.tick += secondTicks
		c.client.ack = c.endpoint.seq
		f := c.at(portClient, c.client, portServer)
		if at := header.EthernetLen + l3Len(c.client); [2]byte(f[at:]) != c.port {
			c.b.t.Fatalf("SNAT port %d, before it was %d", f[at:at+2], c.port)
		}
		c.client.seq += uint32(c.client.payload)
		c.endpoint.ack = c.client.seq
		c.at(portServer, c.endpoint, portClient)
		c.endpoint.seq += uint32(c.endpoint.payload)
	}
}

func l3Len(p packet) int {
	if p.src.Addr().Is4() {
		return header.IPv4Len
	}
	return header.IPv6Len
}

// at is one without the clock going on: only the test moves it.
func (c *talkers) at(in int, p packet, out int) []byte {
	c.b.t.Helper()
	c.b.give(in, p.build(c.b.t))
	got := c.b.roundAtTheSameTime()
	if len(got[out]) != 1 {
		c.b.t.Fatalf("%v %#x: sent %d, %d, %d frames, want one by port %d (drops %v)", p.src, p.flags, len(got[0]), len(got[1]), len(got[2]), out, c.b.drops())
	}
	return got[out][0]
}

// forge sends a packet in that neither end has sent, whatever becomes of it.
func (c *talkers) forge(in int, flags uint8, seq, ack uint32, badSum bool) {
	c.b.t.Helper()
	p := c.client
	if in == portServer {
		p = c.endpoint
	}
	p.flags, p.seq, p.ack, p.payload = flags, seq, ack, 0
	f := p.build(c.b.t)
	if badSum {
		f[header.EthernetLen+l3Len(p)+tcpChecksum] ^= 0x55
	}
	c.b.give(in, f)
	c.b.roundAtTheSameTime()
}

// idle lets time go by without a packet, and ages the table.
func (c *talkers) idle(d time.Duration) {
	c.b.t.Helper()
	ticks := uint32(d * conntrack.TicksPerSecond / time.Second)
	c.b.w.tick += ticks
	c.b.w.conntrack.Offline()
	c.b.lb.flows.Sweep(c.b.w.tick, 1<<20)
	c.b.w.conntrack.Online()
}

// Packets from nowhere with flags that end or begin connections: the connection goes
// on by the same endpoint and SNAT port, on the fast path, and lives as long as ever.
func TestForgedPacketsLeaveAConnectionAsItIs(t *testing.T) {
	const far = 0x5000_0000
	for name, attack := range map[string]func(c *talkers){
		"RST": func(c *talkers) { c.forge(portClient, header.RST, far, 0, false) },
		"RST, then SYN": func(c *talkers) {
			c.forge(portClient, header.RST, far, 0, false)
			c.forge(portClient, header.SYN, far, 0, false)
		},
		"RST ahead of all that is sent": func(c *talkers) { c.forge(portClient, header.RST, c.client.seq+1<<30, 0, false) },
		"RST of the endpoint's":         func(c *talkers) { c.forge(portServer, header.RST, far, 0, false) },
		"RST with ACK of both sides": func(c *talkers) {
			c.forge(portServer, header.RST|header.ACK, far, far, false)
			c.forge(portClient, header.RST|header.ACK, far, far, false)
		},
		"RST with the right number and a wrong checksum": func(c *talkers) { c.forge(portClient, header.RST, c.client.seq, 0, true) },
		"RST and SYN with wrong checksums": func(c *talkers) {
			c.forge(portClient, header.RST, c.client.seq, 0, true)
			c.forge(portClient, header.SYN, far, 0, true)
		},
		"FIN":                   func(c *talkers) { c.forge(portClient, header.FIN|header.ACK, far, far, false) },
		"FIN of the endpoint's": func(c *talkers) { c.forge(portServer, header.FIN|header.ACK, far, far, false) },
		"FIN without ACK":       func(c *talkers) { c.forge(portClient, header.FIN, c.client.seq, 0, false) },
		"FIN that a forged ACK acknowledges": func(c *talkers) {
			c.forge(portClient, header.FIN|header.ACK, far, far, false)
			c.forge(portServer, header.ACK, far, far+1, false)
		},
		"FINs of both sides, acknowledged, then SYN": func(c *talkers) {
			c.forge(portClient, header.FIN|header.ACK, far, far, false)
			c.forge(portServer, header.FIN|header.ACK, far, far+1, false)
			c.forge(portClient, header.ACK, far+1, far+1, false)
			c.forge(portClient, header.SYN, far+9, 0, false)
		},
		"FIN and RST": func(c *talkers) { c.forge(portClient, header.FIN|header.RST, c.client.seq, 0, false) },
		"SYN and RST": func(c *talkers) { c.forge(portClient, header.SYN|header.RST, c.client.seq, 0, false) },
		"SYN":         func(c *talkers) { c.forge(portClient, header.SYN, far, 0, false) },
		"SYN-ACK":     func(c *talkers) { c.forge(portServer, header.SYN|header.ACK, far, far, false) },
		"SYN that a forged SYN-ACK answers": func(c *talkers) {
			c.forge(portClient, header.SYN, far, 0, false)
			c.forge(portServer, header.SYN|header.ACK, far, far+1, false)
		},
	} {
		for _, v6 := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/v6=%v", name, v6), func(t *testing.T) {
				b := newBench(t)
				c := newTalkers(b, v6)
				k := conntrack.MakeKey(c.client.src, c.client.dst, header.ProtoTCP)
				ref := b.w.conntrack.Lookup(b.lb.flows.Hash(&k), &k)
				attack(c)
				attack(c)
				if s := b.lb.flows.Conn(ref).State(); s != flowstate.Established {
					t.Errorf("state %v", s)
				}
				c.talk(3)
				if !b.lb.flows.Conn(ref).Steady(0) {
					t.Error("the fast path is lost")
				}
				b.w.tick += secondTicks
				attack(c)
				c.idle(23 * time.Hour)
				c.talk(1)
				b.framesHome()
			})
		}
	}
}

func (b *bench) open() uint32 { return b.lb.flows.ServiceOpen(b.frontend().ServiceID) }

func (b *bench) frontend() *table.FrontendEntry {
	k := conntrack.MakeKey(ap(client4, 1), ap(node4, 80), header.ProtoTCP)
	fk := table.DestinationKey(&k.W)
	return b.lb.tables.Load().Lookup(&fk)
}

// A client that resets its connection in a way that the endpoint does not take, and
// goes on with it, has that connection still.
func TestARSTOfOnesOwnDoesNotBeatTheConnectionLimit(t *testing.T) {
	for _, ahead := range []uint32{0, 1, 1 << 10, 1 << 30} {
		b := newBench(t)
		b.offer(&table.Policy{MaxConnections: 1}, table.Pool{}, 1)
		c := newTalkers(b, false)
		c.forge(portClient, header.RST, c.client.seq+ahead, 0, false)
		c.talk(4)
		if n := b.open(); n != 1 {
			t.Errorf("RST %d ahead: %d connections are open", ahead, n)
		}
		b.one(portClient, from(false, header.ProtoTCP, 9).build(t), -1)
		if b.drops()["connection-limit"] != 1 {
			t.Errorf("RST %d ahead: counted %v", ahead, b.drops())
		}
	}
}

// Connections that nobody has completed take nothing from the limit, and those that
// are completed keep to it.
func TestSYNsDoNotUseUpTheConnectionLimit(t *testing.T) {
	for name, number := range map[string]uint32{"": 1001, "other SYN answered": 1 << 20} {
		t.Run(name, func(t *testing.T) { checkHalfOpenLimit(t, number) })
	}
}

// checkHalfOpenLimit begins more connections than may be open, and completes them. The
// endpoint acknowledges ack, which the client's SYN has or another that hid it.
func checkHalfOpenLimit(t *testing.T, ack uint32) {
	b := newBench(t)
	b.offer(&table.Policy{MaxConnections: 2}, table.Pool{}, 1)
	for port := range uint16(20) {
		b.one(portClient, from(false, header.ProtoTCP, 100+port).build(t), portServer)
	}
	c := newTalkers(b, false)
	if n := b.open(); n != 1 {
		t.Errorf("%d connections are open", n)
	}
	c.talk(1)
	// All of these begin before the limit is reached; one may go on.
	var begun []packet
	for port := range uint16(3) {
		syn := from(false, header.ProtoTCP, 200+port)
		f := b.one(portClient, syn.build(t), portServer)
		var p header.Packet
		header.Parse(f, len(f), &p)
		answer := c.endpoint
		answer.dst = ap(snat4, uint16(f[p.L4])<<8|uint16(f[p.L4+1]))
		answer.flags, answer.seq, answer.ack, answer.payload = header.SYN|header.ACK, 5000, ack, 0
		b.one(portServer, answer.build(t), portClient)
		syn.flags, syn.seq, syn.ack = header.ACK, ack, 5001
		begun = append(begun, syn)
	}
	b.one(portClient, begun[0].build(t), portServer)
	b.one(portClient, begun[1].build(t), -1)
	b.one(portClient, begun[2].build(t), -1)
	if n := b.open(); n != 2 || b.drops()["connection-limit"] != 2 {
		t.Errorf("%d connections are open, %v", n, b.drops())
	}
	c.talk(1)
	b.framesHome()
}

// Where the endpoint is not heard the client's ACK completes a connection.
func TestTheConnectionLimitHoldsInDSRModes(t *testing.T) {
	for mode, name := range modeNames {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.serveDirect(mode, endpoint4, &table.Policy{MaxConnections: 1})
			for port := range uint16(3) {
				b.one(portClient, from(false, header.ProtoTCP, 100+port).build(t), portServer)
			}
			for port, out := range [3]int{portServer, -1, -1} {
				ack := from(false, header.ProtoTCP, 100+uint16(port))
				ack.flags, ack.seq, ack.ack = header.ACK, 1001, 5001
				b.one(portClient, ack.build(t), out)
			}
			if n := b.open(); n != 1 || b.drops()["connection-limit"] != 2 {
				t.Errorf("%d connections are open, %v", n, b.drops())
			}
			b.framesHome()
		})
	}
}

// A SYN after a reset opens the entry again, but not to an endpoint that takes no new
// connections, nor past the source ranges.
func TestASYNAfterAResetGoesWhereNewConnectionsGo(t *testing.T) {
	again := func(c *talkers) packet {
		c.forge(portClient, header.RST, c.client.seq, 0, false)
		p := c.client
		p.flags, p.seq, p.ack, p.payload = header.SYN, 77, 0, 0
		return p
	}
	b := newBench(t)
	c := newTalkers(b, false)
	c.at(portClient, again(c), portServer)
	if n := b.lb.flows.Stats().Created; n != 1 {
		t.Errorf("%d connections were made, want the first alone", n)
	}
	other := endpoint4.Next()
	b = newBench(t)
	c = newTalkers(b, false)
	syn := again(c)
	b.serve(other, endpoint6)
	if got := b.chosen(syn); got != ap(other, 8080) {
		t.Errorf("the new connection goes to %v, want %v", got, other)
	}
	b = newBench(t)
	c = newTalkers(b, false)
	syn = again(c)
	b.lb.drain()
	b.one(portClient, syn.build(t), portHost)
}

// A client whose SYN after a reset is refused sends it again.
func TestASYNAfterAResetIsRefusedEachTime(t *testing.T) {
	for reason, policy := range map[string]*table.Policy{
		"source-range":     {SourceRanges: []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24")}},
		"connection-limit": {MaxConnections: 1},
		"connection-rate":  {NewConnectionsPerSecond: 1},
		"denied":           {},
	} {
		t.Run(reason, func(t *testing.T) {
			b := newBench(t)
			b.offer(&table.Policy{}, table.Pool{}, 1)
			b.w.cfg.Denied = &Denied{Node: 1}
			b.w.cfg.Denied.Set.Store(denylist.New())
			syn := b.openFrom(2)
			syn.flags = header.RST
			b.one(portClient, syn.build(t), portServer)
			syn.flags, syn.seq, syn.ack = header.SYN, 77, 0
			b.offer(policy, table.Pool{}, 1)
			switch reason {
			case "denied":
				denied, _ := denylist.New().With(0, []netip.Prefix{netip.PrefixFrom(syn.src.Addr(), 32)}, denylist.Heap)
				b.w.cfg.Denied.Set.Store(denied)
			case "connection-limit", "connection-rate":
				b.openFrom(3)
			}
			b.w.beginRound()
			for n := range uint64(3) {
				b.give(portClient, syn.build(t))
				if out := b.roundAtTheSameTime(); len(out[portServer]) != 0 || b.drops()[reason] != n+1 {
					t.Fatalf("SYN %d: %d frames to the endpoint, counted %v", n+1, len(out[portServer]), b.drops())
				}
			}
			b.framesHome()
		})
	}
}
