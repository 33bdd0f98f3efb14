package worker

import (
	"bytes"
	"slices"
	"testing"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/counter"
	"github.com/weirlb/weir/lb/header"
)

// connect makes a TCP connection and returns the answer of the endpoint's side that
// is of the established state.
func connect(t *testing.T, b *bench) packet {
	t.Helper()
	req := request(false, header.ProtoTCP)
	f := b.one(portClient, req.build(t), portServer)
	ans := packet{srcMAC: macServer, dstMAC: macWeirB, src: ap(endpoint4, 8080), proto: header.ProtoTCP, flags: header.SYN | header.ACK, df: true}
	ans.dst = ap(snat4, uint16(f[34])<<8|uint16(f[35]))
	b.one(portServer, ans.build(t), portClient)
	req.flags = header.ACK
	b.one(portClient, req.build(t), portServer)
	ans.flags = header.ACK
	return ans
}

// The short way must do what the long one does: the same packets once as they are,
// once in two buffers, which the short one does not take.
func TestEstablishedPacketsAreRewrittenAsAllOthers(t *testing.T) {
	for name, change := range map[string]func(*packet){
		"plain":            func(*packet) {},
		"larger":           func(p *packet) { p.payload = 700 },
		"the last but TTL": func(p *packet) { p.ttl = 2 },
		"partial checksum": func(p *packet) { p.partial = true },
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			ans := connect(t, b)
			change(&ans)
			f := ans.build(t)
			short := b.one(portServer, f, portClient)
			forced := b.long(portServer, f, portClient)
			if !bytes.Equal(short, forced) {
				t.Errorf("short %x\nlong  %x", short, forced)
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
	return x.lanes&1 != 0 || x.pkts[0].state == fast
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
		if x.lanes>>i&1 != 0 {
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
		if n := b.states()[conntrack.StateFinWait]; n != 1 {
			t.Errorf("v6=%v: after a FIN %v", v6, b.states())
		}
		b.framesHome()
	}
}
