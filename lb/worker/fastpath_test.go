package worker

import (
	"bytes"
	"encoding/binary"
	"slices"
	"testing"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/conntrack/flowstate"
	"github.com/weirlb/weir/lb/counter"
	"github.com/weirlb/weir/lb/header"
)

// connect makes a TCP connection and returns the answer of the endpoint's side that
// is of the established state.
func connect(t *testing.T, b *bench) packet {
	t.Helper()
	return connectBy(t, b, false)
}

// connectBy is connect by IPv4 or IPv6.
func connectBy(t *testing.T, b *bench, v6 bool) packet {
	t.Helper()
	req := request(v6, header.ProtoTCP)
	f := b.one(portClient, req.build(t), portServer)
	ans := packet{srcMAC: macServer, dstMAC: macWeirB, src: ap(endpoint4, 8080), proto: header.ProtoTCP, flags: header.SYN | header.ACK, df: true}
	ans.dst = ap(snat4, binary.BigEndian.Uint16(f[34:]))
	if v6 {
		ans.src, ans.dst = ap(endpoint6, 8080), ap(snat6, binary.BigEndian.Uint16(f[54:]))
	}
	ans.ack = req.seq + 1
	b.one(portServer, ans.build(t), portClient)
	req.flags, req.seq, req.ack = header.ACK, req.seq+1, ans.seq+1
	b.one(portClient, req.build(t), portServer)
	ans.flags, ans.seq = header.ACK, ans.seq+1
	if n := b.states()[flowstate.Established]; n != 1 {
		t.Fatalf("the connection is not established: %v", b.states())
	}
	return ans
}

// Answers of an established connection leave by lanes as by the slow path.
func TestEstablishedPacketsAreRewrittenAsAllOthers(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*packet)
		lanes  int
	}{
		"plain":            {func(*packet) {}, 1},
		"larger":           {func(p *packet) { p.payload = 700 }, 1},
		"the last but TTL": {func(p *packet) { p.ttl = 2 }, 1},
		"partial checksum": {func(p *packet) { p.partial = true }, 0},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			_, ans := steadyConnection(t, b, false)
			tt.change(&ans)
			if n := b.sameOnBothPaths(portServer, [][]byte{ans.build(t)}); n != tt.lanes {
				t.Errorf("%d packets take a lane, want %d", n, tt.lanes)
			}
			b.framesHome()
		})
	}
}

// The same of the client's packets in l2dsr, which keep all but MAC addresses and TTL.
func TestEstablishedPacketsOfL2DSRAreForwardedAsAllOthers(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		b := newBench(t)
		endpoint := endpoint4
		if v6 {
			endpoint = endpoint6
		}
		b.serveDirect(conntrack.ModeL2DSR, endpoint, nil)
		req := request(v6, header.ProtoTCP)
		b.one(portClient, req.build(t), portServer)
		req.flags = header.ACK
		b.one(portClient, req.build(t), portServer)
		for _, ttl := range []uint8{2, 77} {
			req.ttl = ttl
			f := req.build(t)
			short := b.one(portClient, f, portServer)
			if !b.tookFastPath() || !bytes.Equal(short, b.long(portClient, f, portServer)) {
				t.Errorf("IPv6 %v, TTL %d: short %x", v6, ttl, short)
			}
			if want := header.Fold(header.Sum(0, short[14:34])); !v6 && (want != 0xffff || short[22] != ttl-1) {
				t.Errorf("TTL %d became %d, the header sums to %x", ttl, short[22], want)
			}
		}
		b.framesHome()
	}
}

// tookFastPath reports whether the last packet was forwarded in its lane, or as a fast pkt.
func (b *bench) tookFastPath() bool {
	x := &b.w.batch
	return x.lanes()&1 != 0 || x.pkts[0].state == fast
}

// long is one with the fast path never taken.
func (b *bench) long(in int, frame []byte, out int) []byte {
	b.t.Helper()
	b.give(in, frame)
	b.w.beginRound()
	x := &b.w.batch
	n := b.w.take(x, int32(in), b.q[in])
	b.w.ports[in].filled -= n
	b.w.classify(x, 0, x.n)
	for i := range x.pkts[:x.n] {
		if x.lanes()>>i&1 != 0 {
			b.w.leaveLane(x, i)
		}
		if p := &x.pkts[i]; p.state == fast {
			p.state = slow
		}
	}
	b.w.conntrack.Candidates(x.hash[:x.n], x.ref[:x.n])
	b.w.dispatch(x, 0, x.n, b.w.counts[counter.NewFlows])
	b.w.endRound()
	q := b.q[out]
	if len(q.Out) != 1 {
		b.t.Fatalf("%d frames sent", len(q.Out))
	}
	d := q.Out[0]
	q.Out = q.Out[:0]
	f := bytes.Clone(b.w.area[d.Addr : d.Addr+uint64(d.Len)])
	if d.Options != 0 {
		completeByMetadata(b.w.area[d.Addr-24:d.Addr], f)
	}
	return f
}

// A tag names the network that a packet came from. The way out is another, which has
// its own: kept, the tag would take the packet to a VLAN of that number there.
func TestEstablishedFlowsLoseTheirTags(t *testing.T) {
	for _, tag := range [][]byte{{0x81, 0, 0, 7}, {0x81, 0, 0xe0, 0}, {0x88, 0xa8, 0, 7}} {
		b := newBench(t)
		f := connect(t, b).build(t)
		want := b.one(portServer, f, portClient)
		if got := b.one(portServer, slices.Insert(slices.Clone(f), 12, tag...), portClient); !bytes.Equal(got, want) {
			t.Errorf("tag %x:\n got %x\nwant %x", tag, got, want)
		}
		b.framesHome()
	}
}

// A connection that sends more than a megabyte each way within a tick is followed, and
// its end is seen.
func TestABusyConnectionIsSampledOnTheFastPath(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		b := newBench(t)
		c := newTalkers(b, v6)
		const step = 1 << 16 // what lies between two packets goes by in others
		c.client.seq, c.endpoint.seq = step, step
		for range 64 {
			c.client.ack = c.endpoint.seq
			c.at(portClient, c.client, portServer)
			c.client.seq += step
			c.endpoint.ack = c.client.seq
			c.at(portServer, c.endpoint, portClient)
			c.endpoint.seq += step
		}
		c.client.flags, c.client.payload, c.client.ack = header.FIN|header.ACK, 0, c.endpoint.seq
		c.at(portClient, c.client, portServer)
		if n := b.states()[flowstate.FinWait]; n != 1 {
			t.Errorf("v6=%v: after a FIN %v", v6, b.states())
		}
		b.framesHome()
	}
}

// A packet may have the tuple of an established flow, but another header than the flow's
// packets have. It has the outcome that it has without the fast path.
func TestOddPacketsOfEstablishedFlows(t *testing.T) {
	for name, c := range map[string]struct {
		change func(f []byte)
		drop   string // the reason
	}{
		"length beyond frame":   {func(f []byte) { f[16] = 1; sumIPv4(f) }, "truncated"},
		"length of no segment":  {func(f []byte) { f[17] = 39; sumIPv4(f) }, "bad-transport-header"},
		"data offset too small": {func(f []byte) { f[46] = 4 << 4 }, "bad-transport-header"},
		"data offset too large": {func(f []byte) { f[46] = 15 << 4 }, "bad-transport-header"},
		"TTL of 1":              {func(f []byte) { f[22] = 1; sumIPv4(f) }, "ttl-exceeded"},
		"FIN with a wrong sum":  {func(f []byte) { f[47] |= header.FIN }, "bad-checksum"},
		"options of no length":  {func(f []byte) { f[14] = 0x4f; sumIPv4(f) }, "truncated"},
		"another IP version":    {func(f []byte) { f[14] = 0x55; sumIPv4(f) }, "bad-ip-header"},
		"a later fragment":      {func(f []byte) { f[21] = 9; sumIPv4(f) }, ""}, // waits for the first
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			f := connect(t, b).build(t)
			b.one(portServer, f, portClient)
			c.change(f)
			b.give(portServer, f)
			if out := b.round()[portClient]; len(out) != 0 {
				t.Errorf("forwarded: %x", out)
			}
			if n := b.drops()[c.drop]; n != 1 && c.drop != "" {
				t.Errorf("drops %v, want %s", b.drops(), c.drop)
			}
			b.framesHome()
		})
	}
}

// A packet that is forwarded in its lane is the packet that any other path makes of it. A
// packet with a damaged IPv4 header is dropped (RFC 1812 section 5.2.2).
func TestLanesRewriteAsAllOtherPaths(t *testing.T) {
	b := newBench(t)
	c := newTalkers(b, false)
	udp := request(false, header.ProtoUDP)
	b.one(portClient, udp.build(t), portServer)
	b.one(portClient, udp.build(t), portServer)
	noSum := udp.build(t)
	noSum[40], noSum[41] = 0, 0
	for name, x := range map[string]struct {
		in, out int
		f       []byte
	}{
		"TCP from the client":     {portClient, portServer, c.client.build(t)},
		"TCP from the endpoint":   {portServer, portClient, c.endpoint.build(t)},
		"UDP":                     {portClient, portServer, udp.build(t)},
		"UDP without a checksum":  {portClient, portServer, noSum},
		"padding":                 {portClient, portServer, append(udp.build(t), make([]byte, 6)...)},
		"full checksums promised": {portServer, portClient, c.endpoint.build(t)},
	} {
		b.w.ports[x.in].FullChecksums = name == "full checksums promised"
		lane := b.one(x.in, x.f, x.out)
		if other := b.long(x.in, x.f, x.out); !bytes.Equal(lane, other) {
			t.Errorf("%s:\nin a lane %x\notherwise %x", name, lane, other)
		}
		bad := bytes.Clone(x.f)
		bad[24] ^= 0x40
		before := b.drops()["bad-ip-header"]
		if b.one(x.in, bad, -1); b.drops()["bad-ip-header"] != before+1 {
			t.Errorf("%s: a wrong header checksum: drops %v", name, b.drops())
		}
	}
	b.framesHome()
}

// sumIPv4 makes the header checksum right.
func sumIPv4(f []byte) {
	f[24], f[25] = 0, 0
	c := header.Checksum(0, f[14:34])
	f[24], f[25] = byte(c), byte(c>>8)
}
