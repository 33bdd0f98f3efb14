package worker

import (
	"net/netip"
	"testing"

	"github.com/weirlb/weir/lb/header"
	"github.com/weirlb/weir/lb/reassign"
	"github.com/weirlb/weir/lb/table"
)

// nodeB and nodeC are addresses of further frontends.
var (
	nodeB = netip.MustParseAddr("198.51.100.3")
	nodeC = netip.MustParseAddr("198.51.100.4")
)

// servicePort returns a Service with one port on addr, for TCP, UDP and SCTP.
func servicePort(name string, policy *table.Policy, addr netip.Addr, endpoints ...netip.Addr) table.Service {
	s := table.Service{Name: name, Policy: policy, Pools: []table.Pool{{}}}
	for _, e := range endpoints {
		s.Pools[0].Endpoints = append(s.Pools[0].Endpoints, table.Endpoint{AddrPort: ap(e, 8080)})
	}
	for _, proto := range []uint8{header.ProtoTCP, header.ProtoUDP, header.ProtoSCTP} {
		s.Frontends = append(s.Frontends, table.Frontend{AddrPort: ap(addr, 80), Proto: proto, Kind: table.NodePort, Port: 80})
	}
	return s
}

func (b *bench) apply(del []string, put ...table.Service) {
	b.t.Helper()
	if _, err := b.lb.tables.Apply(put, del); err != nil {
		b.t.Fatal(err)
	}
}

// to returns the packet with another destination address.
func (p packet) to(a netip.Addr) packet {
	p.dst = netip.AddrPortFrom(a, p.dst.Port())
	return p
}

// goes sends packet p in and returns the endpoint that it leaves for.
func (b *bench) goes(p packet) netip.Addr {
	b.t.Helper()
	f := b.one(portClient, p.build(b.t), portServer)
	return netip.AddrFrom4([4]byte(f[header.EthernetLen+16:]))
}

// An endpoint that leaves a Service is gone for that Service's flows, though another
// Service lists it.
func TestAnEndpointThatAnotherServiceListsIsGoneForTheServiceThatItLeft(t *testing.T) {
	shared := func(policy *table.Policy) (b *bench, tcpA, udpA, udpB packet) {
		b = newBench(t)
		b.apply(nil, servicePort("ns/a", policy, nodeB, endpoint4), servicePort("ns/b", policy, nodeC, endpoint4))
		b.w.removed.graceTicks = 0
		tcpA, udpA = request(false, header.ProtoTCP).to(nodeB), request(false, header.ProtoUDP).to(nodeB)
		udpB = request(false, header.ProtoUDP).to(nodeC)
		for _, p := range []packet{tcpA, udpA, udpB} {
			if got := b.goes(p); got != endpoint4 {
				t.Fatalf("goes to %v", got)
			}
		}
		b.apply(nil, servicePort("ns/a", policy, nodeB, narrow4))
		tcpA.flags, tcpA.seq = header.ACK, 1001
		return b, tcpA, udpA, udpB
	}
	t.Run("UDP moves", func(t *testing.T) {
		b, _, udpA, udpB := shared(nil)
		if got := b.goes(udpA); got != narrow4 {
			t.Errorf("the Service that it left: %v", got)
		}
		if got := b.goes(udpB); got != endpoint4 {
			t.Errorf("the Service that has it: %v", got)
		}
	})
	t.Run("reset", func(t *testing.T) {
		b, tcpA, _, _ := shared(&table.Policy{OnRemoval: table.ResetFlows})
		b.give(portClient, tcpA.build(t))
		isReset(t, b.round()[portClient][0])
	})
	t.Run("drop", func(t *testing.T) {
		b, tcpA, _, _ := shared(&table.Policy{OnRemoval: table.DropFlows})
		b.one(portClient, tcpA.build(t), -1)
		if b.drops()["endpoint-removed"] != 1 {
			t.Errorf("counted %v", b.drops())
		}
	})
	t.Run("the Service is deleted", func(t *testing.T) {
		b, tcpA, _, udpB := shared(&table.Policy{OnRemoval: table.ResetFlows})
		b.apply([]string{"ns/a"})
		b.give(portClient, tcpA.build(t))
		isReset(t, b.round()[portClient][0])
		if got := b.goes(udpB); got != endpoint4 {
			t.Errorf("the other Service: %v", got)
		}
	})
	t.Run("it comes back", func(t *testing.T) {
		b, tcpA, udpA, _ := shared(&table.Policy{OnRemoval: table.DropFlows})
		b.apply(nil, servicePort("ns/a", nil, nodeB, narrow4, endpoint4))
		for _, p := range []packet{tcpA, udpA} {
			if got := b.goes(p); got != endpoint4 {
				t.Errorf("protocol %d goes to %v", p.proto, got)
			}
		}
	})
}

// A load balancer IP passes to another Service, whose endpoints get its datagrams. The
// endpoints of the Service that had it go on with others.
func TestUDPFlowsFollowTheirFrontendToAnotherService(t *testing.T) {
	for name, steps := range map[string]func(apply func(del []string, put ...table.Service)){
		"in one change": func(apply func([]string, ...table.Service)) {
			apply(nil, servicePort("ns/a", nil, nodeC, endpoint4), servicePort("ns/b", nil, nodeB, narrow4))
		},
		"after a time without a Service": func(apply func([]string, ...table.Service)) {
			apply(nil, servicePort("ns/a", nil, nodeC, endpoint4))
			apply(nil, servicePort("ns/b", nil, nodeB, narrow4))
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			flows := reassign.New(b.lb.flows, b.lb.tables)
			apply := func(del []string, put ...table.Service) {
				t.Helper()
				change, err := b.lb.tables.Apply(put, del)
				if err != nil {
					t.Fatal(err)
				}
				flows.Follow(&change)
			}
			apply(nil, servicePort("ns/a", nil, nodeB, endpoint4))
			b.w.removed.graceTicks = 0
			udp, tcp := request(false, header.ProtoUDP).to(nodeB), request(false, header.ProtoTCP).to(nodeB)
			b.goes(udp)
			b.goes(tcp)
			steps(apply)
			if got := b.goes(udp); got != narrow4 {
				t.Errorf("datagrams go to %v", got)
			}
			if tcp.flags, tcp.seq = header.ACK, 1001; b.goes(tcp) != endpoint4 {
				t.Error("the connection moved")
			}
			b.framesHome()
		})
	}
}
