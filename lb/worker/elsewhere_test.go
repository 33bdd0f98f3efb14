package worker

import (
	"net/netip"
	"testing"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/attempts"
	"github.com/weirlb/weir/lb/header"
	"github.com/weirlb/weir/lb/table"
)

// The refusal of a connection that another endpoint may take is kept from the client, whose SYN goes
// there a second later. If no endpoint answers, the client hears it at once.
func TestARefusedConnectionGoesElsewhere(t *testing.T) {
	for _, c := range []struct {
		name      string
		endpoints []netip.Addr
		mode      conntrack.Mode
		refuse    func(b *bench, syn []byte, p packet)
		twice     bool // as a host may send it
		wrong     bool // it acknowledges another SYN
		failing   bool // the last attempt at the other endpoint failed
		told      bool // the client
	}{
		{name: "RST", endpoints: []netip.Addr{endpoint4, narrow4}, refuse: refuse},
		{name: "RST, twice", endpoints: []netip.Addr{endpoint4, narrow4}, refuse: refuse, twice: true},
		{name: "port unreachable", endpoints: []netip.Addr{endpoint4, narrow4}, refuse: unreachable},
		{name: "RST for another SYN", endpoints: []netip.Addr{endpoint4, narrow4}, refuse: refuse, wrong: true, told: true},
		{name: "no other endpoint", endpoints: []netip.Addr{endpoint4}, refuse: refuse, told: true},
		{name: "no other endpoint, port unreachable", endpoints: []netip.Addr{endpoint4}, refuse: unreachable, told: true},
		{name: "the other fails, too", endpoints: []netip.Addr{endpoint4, narrow4}, refuse: refuse, failing: true, told: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBench(t)
			b.serveAt(table.Pool{}, c.mode, c.endpoints...)
			p := request(false, header.ProtoTCP)
			syn := b.one(portClient, p.build(t), portServer)
			first := dstOf(syn)
			if c.failing {
				for n := range uint32(20) {
					if at, proto, ok := b.lb.tables.Endpoint(n); ok && proto == header.ProtoTCP && at.Addr() != first {
						b.lb.attempts.Refused(n, 1)
					}
				}
			}
			answered := p
			if c.wrong {
				answered.seq += 1 << 20
			}
			c.refuse(b, syn, answered)
			if c.twice {
				c.refuse(b, syn, answered)
			}
			out := b.round()
			if told := len(out[portClient]) > 0; told != c.told {
				t.Fatalf("the client has got %d packets (drops %v)", len(out[portClient]), b.drops())
			}
			if c.told {
				return
			}
			if n := b.drops()["refused-by-endpoint"]; n == 0 {
				t.Errorf("drops %v", b.drops())
			}
			if second := b.sentTo(b.after(secondTicks, p)); second == first {
				t.Errorf("the SYN that was sent again goes to %s as well", second)
			}
			if got := b.tried(netip.AddrPortFrom(first, 8080), header.ProtoTCP); got != (attempts.Counts{Refused: 1, InARow: 1}) {
				t.Errorf("%+v", got)
			}
			b.framesHome()
		})
	}
}

// A refusal that is kept from the client costs no allocation.
func TestARefusedConnectionAllocatesNothing(t *testing.T) {
	b := newBench(t)
	b.serveAt(table.Pool{}, conntrack.ModeNAT, endpoint4, narrow4)
	p := request(false, header.ProtoTCP)
	syn := b.one(portClient, p.build(t), portServer)
	rst := answerOf(syn, p, header.RST|header.ACK).build(t)
	n := testing.AllocsPerRun(200, func() {
		b.give(portServer, rst)
		b.w.Round()
	})
	if n != 0 || b.drops()["refused-by-endpoint"] == 0 {
		t.Errorf("%v allocations per refusal, drops %v", n, b.drops())
	}
}
