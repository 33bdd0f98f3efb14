package worker

import (
	"fmt"
	"testing"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/header"
)

// An endpoint that answers past Weir has the frontend's address: errors about
// its answers come to Weir, and reach it as they are.
func TestAnErrorAboutADirectAnswerReachesTheEndpoint(t *testing.T) {
	for mode, name := range modeNames {
		for _, v6 := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/v6=%v", name, v6), func(t *testing.T) {
				b := newBench(t)
				node, client, ep := node4, client4, endpoint4
				if v6 {
					node, client, ep = node6, client6, endpoint6
				}
				b.serveDirect(mode, ep, nil)
				req := request(v6, header.ProtoTCP)
				b.one(portClient, req.build(t), portServer)
				answer := packet{src: req.dst, dst: req.src, proto: header.ProtoTCP, flags: header.ACK, payload: 500, ttl: 60, df: true}
				e := errorKinds(v6)[2]
				if v6 {
					e = errorKinds(v6)[1]
				}
				in := icmpPacket{srcMAC: macClient, dstMAC: macWeir, src: client, dst: node, typ: e.typ, code: e.code, rest: 1400, body: quoted(t, answer)}
				want := in
				want.srcMAC, want.dstMAC, want.ttl = macWeirB, macServer, 63
				got := b.one(portClient, in.build(t), portServer)
				expect := want.build(t)
				if mode != conntrack.ModeL2DSR {
					port, label, id := variable(got, header.EthernetLen, mode, v6)
					expect = tunnelled(t, mode, v6, expect, port, label, id)
				}
				sameFrame(t, got, expect)

				// Of a flow that is another node's: the same, and none is made.
				answer.dst = ap(client, 4711)
				in.body, want.body = quoted(t, answer), quoted(t, answer)
				got, expect = b.one(portClient, in.build(t), portServer), want.build(t)
				if mode != conntrack.ModeL2DSR {
					port, label, id := variable(got, header.EthernetLen, mode, v6)
					expect = tunnelled(t, mode, v6, expect, port, label, id)
				}
				sameFrame(t, got, expect)
				if b.lb.flows.Flows() != 1 {
					t.Errorf("%d flows", b.lb.flows.Flows())
				}
				b.framesHome()
			})
		}
	}
}
