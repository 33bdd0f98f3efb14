package worker

import (
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/lb/header"
	"github.com/weirlb/weir/lb/route"
	"github.com/weirlb/weir/lb/table"
)

var (
	insidePod4 = netip.MustParseAddr("10.244.1.5")   // behind the kernel
	inside4    = netip.MustParseAddr("10.1.0.9")     // on the endpoints' link
	nowhere4   = netip.MustParseAddr("9.9.9.9")      // without a route
	discarded  = netip.MustParseAddr("203.0.113.44") // of a blackhole route
	ranged4    = netip.MustParseAddr("198.51.100.77")
	open4      = netip.MustParseAddr("198.51.100.78")
)

// filtered is a bench with a route to pods through the kernel. It has an address that only
// clients of the ranges may use, and an open address.
func filtered(t *testing.T, filter ReversePathFilter) *bench {
	b := newBench(t)
	b.w.cfg.ReversePathFilter = filter
	b.lb.router.SetRoute(netip.MustParsePrefix("10.244.0.0/16"), route.Path{Kind: route.Host, Port: portHost, Interface: 9, MTU: 1500})
	pool := []table.Pool{{Endpoints: []table.Endpoint{{AddrPort: ap(endpoint4, 8080)}}}}
	everyone := []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")}
	if _, err := b.lb.tables.Apply([]table.Service{
		{Name: "ns/ranged", Pools: pool, Policy: &table.Policy{SourceRanges: everyone},
			Frontends: []table.Frontend{{AddrPort: ap(ranged4, 80), Proto: header.ProtoUDP, Kind: table.LoadBalancer}}},
		{Name: "ns/open", Pools: pool, Frontends: []table.Frontend{{AddrPort: ap(open4, 80), Proto: header.ProtoUDP, Kind: table.LoadBalancer}}},
	}, nil); err != nil {
		t.Fatal(err)
	}
	return b
}

func datagramFrom(src, dst netip.Addr) packet {
	return packet{srcMAC: macClient, dstMAC: macWeir, src: ap(src, 40000), dst: ap(dst, 80), proto: header.ProtoUDP}
}

// A packet from outside with a source of the inside begins no flow.
func TestSourcesAreCheckedAgainstTheRouteBack(t *testing.T) {
	const auto, strict, loose, off = ReversePathAuto, ReversePathStrict, ReversePathLoose, ReversePathOff
	for _, tc := range []struct {
		name  string
		src   netip.Addr
		in    int
		to    netip.Addr
		drops []ReversePathFilter
	}{
		{"by its interface", client4, portClient, ranged4, nil},
		{"by its interface, open", client4, portClient, open4, nil},
		{"a pod", insidePod4, portClient, open4, []ReversePathFilter{auto, strict, loose}},
		{"a pod, ranged", insidePod4, portClient, ranged4, []ReversePathFilter{auto, strict, loose}},
		{"a pod, through the kernel", insidePod4, portHost, ranged4, nil},
		{"of another attached link", inside4, portClient, open4, []ReversePathFilter{strict}},
		{"of another attached link, ranged", inside4, portClient, ranged4, []ReversePathFilter{auto, strict}},
		{"of another attached link, by it", inside4, portServer, ranged4, nil},
		{"no route", nowhere4, portClient, ranged4, []ReversePathFilter{strict, loose}},
		{"a blackhole", discarded, portClient, open4, []ReversePathFilter{auto, strict, loose}},
	} {
		for _, filter := range []ReversePathFilter{auto, strict, loose, off} {
			t.Run(tc.name, func(t *testing.T) {
				b := filtered(t, filter)
				out, dropped := portServer, uint64(0)
				for _, f := range tc.drops {
					if f == filter {
						out, dropped = -1, 1
					}
				}
				b.one(tc.in, datagramFrom(tc.src, tc.to).build(t), out)
				if n := b.drops()["reverse-path"]; n != dropped || b.lb.flows.Flows() != 1-int(dropped) {
					t.Errorf("filter %d: %d dropped, %d flows", filter, n, b.lb.flows.Flows())
				}
				b.framesHome()
			})
		}
	}
}

// Of two default routes either brings clients that the other's route leads back to,
// also where source ranges admit them.
func TestTheDefaultRouteTellsNoInterface(t *testing.T) {
	b := filtered(t, ReversePathAuto)
	b.lb.router.SetRoute(netip.MustParsePrefix("0.0.0.0/0"), route.Path{Kind: route.Attached, Port: portClient, Interface: portClient + 1, NextHop: client4, MTU: 1500, Source: node4, LocalSource: node4})
	b.one(portServer, datagramFrom(nowhere4, ranged4).build(t), portServer)
	b.w.cfg.ReversePathFilter = ReversePathStrict
	other := datagramFrom(nowhere4, ranged4)
	other.src = ap(nowhere4, 40001)
	b.one(portServer, other.build(t), -1)
}

// The check is of new flows: an established one goes on when routes change.
func TestAnEstablishedFlowIsNotChecked(t *testing.T) {
	b := filtered(t, ReversePathStrict)
	f := datagramFrom(client4, open4).build(t)
	b.one(portClient, f, portServer)
	b.lb.router.SetRoute(netip.MustParsePrefix("192.0.2.0/24"), route.Path{Kind: route.Host, Port: portHost, Interface: 9, MTU: 1500})
	b.one(portClient, f, portServer)
}

// A change of routes holds for the next flow of a source that has begun flows before.
func TestAChangeOfRoutesHoldsForKnownSources(t *testing.T) {
	b := filtered(t, ReversePathStrict)
	for i, step := range []struct {
		name string
		port int
		out  int
	}{{"attached", portClient, portServer}, {"moved", portServer, -1}, {"back", portClient, portServer}} {
		b.lb.router.SetRoute(netip.MustParsePrefix("192.0.2.0/24"), route.Path{Kind: route.Attached, Port: step.port, Interface: step.port + 1, MTU: 1500})
		f := datagramFrom(client4, open4)
		for port := range uint16(2) {
			f.src = ap(client4, 40000+2*uint16(i)+port)
			b.one(portClient, f.build(t), step.out)
		}
	}
}

// A VLAN's packets arrive at the port under it: the tag tells the interface.
func TestTheTagTellsTheInterface(t *testing.T) {
	for _, tc := range []struct {
		name string
		src  netip.Addr
		tag  uint16
		out  int
	}{
		{"the VLAN's source with its tag", inside4, 100, portClient},
		{"with a priority too", inside4, 5<<13 | 100, portClient},
		{"the VLAN's source with another tag", inside4, 200, -1},
		{"the VLAN's source with a priority tag", inside4, 5 << 13, -1},
		{"the parent's source with the tag", client4, 100, -1},
		{"the parent's source with a priority tag", client4, 5 << 13, portClient},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := filtered(t, ReversePathAuto)
			b.onVLAN(portServer, portClient, unix.ETH_P_8021Q, 100)
			f := tagged(datagramFrom(tc.src, ranged4).build(t), unix.ETH_P_8021Q, tc.tag)
			b.one(portClient, f, tc.out)
			b.framesHome()
		})
	}
}

// A bond's members share its interface: a packet may come by any of them, whichever
// the routes leave by.
func TestABondsBackupIsTheBond(t *testing.T) {
	b := filtered(t, ReversePathStrict)
	b.w.ports[portServer].Interface = b.w.ports[portClient].Interface
	b.one(portServer, datagramFrom(client4, ranged4).build(t), portServer)
}

// Answering a ping with a source of the inside would have Weir write there.
func TestAPingFromThePodsIsDropped(t *testing.T) {
	b := filtered(t, ReversePathAuto)
	b.answerPings(empty4)
	req, _ := ping(false, 8)
	req.src = insidePod4
	b.one(portClient, req.build(t), -1)
	if b.drops()["reverse-path"] != 1 {
		t.Errorf("drops %v", b.drops())
	}
}

func TestNoAllocationForASourceThatIsDropped(t *testing.T) {
	b := filtered(t, ReversePathAuto)
	f := datagramFrom(insidePod4, ranged4).build(t)
	if n := testing.AllocsPerRun(500, func() {
		b.give(portClient, f)
		b.w.Round()
	}); n != 0 {
		t.Errorf("%v allocations per packet", n)
	}
}
