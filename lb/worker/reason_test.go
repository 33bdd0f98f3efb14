package worker

import (
	"encoding/binary"
	"math/bits"
	"net/netip"
	"testing"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/header"
)

// What is not IP is the kernel's, once: from the host veth it is dropped.
func TestWhatIsNotIPGoesBackToTheKernelOnce(t *testing.T) {
	b := newBench(t)
	f := request(false, header.ProtoUDP).build(t)
	binary.BigEndian.PutUint16(f[12:], 0x88b5) // IEEE 802: for experiments
	b.one(portClient, f, portHost)
	b.one(portHost, f, -1)
	if b.drops()[DropNotIP.String()] != 1 {
		t.Errorf("counted %v", b.drops())
	}
	b.framesHome()
}

// An endpoint that no route leads to is unreachable; where a route says to be
// silent, Weir is.
func TestEndpointsWithoutARoute(t *testing.T) {
	for name, c := range map[string]struct {
		endpoint string
		out      int
	}{
		"none at all": {"172.31.0.1", portClient},
		"a blackhole": {"203.0.113.5", -1},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.serve(netip.MustParseAddr(c.endpoint), endpoint6)
			f := b.one(portClient, request(false, header.ProtoUDP).build(t), c.out)
			if c.out == portClient {
				isICMP(3, 1)(t, f)
			}
			if b.drops()[DropNoRoute.String()] != 1 {
				t.Errorf("counted %v", b.drops())
			}
			b.framesHome()
		})
	}
}

// Connections of a one-way mode that fill the flow table make room for new ones, and
// go on all the same.
func TestAFullFlowTableKeepsEstablishedFlows(t *testing.T) {
	b := newBench(t)
	b.serveDirect(conntrack.ModeIPIP, endpoint4, nil) // one way: no answers to make up
	syn, ack := request(false, header.ProtoTCP), request(false, header.ProtoTCP)
	ack.flags, ack.seq = header.ACK, 1001
	open, goOn := syn.build(t), ack.build(t)
	sent := 0
	pass := func(f []byte, client int) {
		was, now := binary.LittleEndian.Uint16(f[34:]), bits.ReverseBytes16(uint16(1024+client))
		binary.LittleEndian.PutUint16(f[34:], now)
		sum := header.Update(binary.LittleEndian.Uint16(f[50:]), uint64(^was)+uint64(now))
		binary.LittleEndian.PutUint16(f[50:], sum)
		b.give(portClient, f)
		sent += len(b.roundAtTheSameTime()[portServer])
	}
	flows := b.lb.flows.MaxFlows()
	b.round()
	for client := range flows + 100 {
		pass(open, client)
		pass(goOn, client)
	}
	if n := len(b.drops()); n != 0 || sent != 2*(flows+100) || b.lb.flows.Flows() > flows {
		t.Fatalf("%d flows of at most %d, %d packets sent, drops %v", b.lb.flows.Flows(), flows, sent, b.drops())
	}
	for before, client := sent, 0; client < 100; client++ {
		if pass(goOn, client); sent != before+client+1 {
			t.Fatalf("flow %d does not go on: drops %v", client, b.drops())
		}
	}
	b.framesHome()
}
