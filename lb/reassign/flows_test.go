package reassign

import (
	"net/netip"
	"testing"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/header"
	"github.com/weirlb/weir/lb/table"
)

func TestFormerFrontendsAreForgottenWhenThereAreTooMany(t *testing.T) {
	flows, err := conntrack.Open(conntrack.Config{MaxFlows: 1 << 10, Workers: 1, MaxEndpoints: 1 << 10})
	if err != nil {
		t.Fatal(err)
	}
	defer flows.Close()
	tables := table.New(table.Config{Tick: flows.Tick})
	r := New(flows, tables)
	for i := range maxFormer + 100 {
		a := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 9, byte(i >> 8), byte(i)}), 53)
		r.servicePorts[table.MakeKey(a, header.ProtoUDP)] = 1
	}
	change, err := tables.Apply([]table.Service{{
		Name:  "ns/a",
		Pools: []table.Pool{{Endpoints: []table.Endpoint{{AddrPort: netip.MustParseAddrPort("10.1.0.5:8080")}}}},
		Frontends: []table.Frontend{{
			AddrPort: netip.MustParseAddrPort("198.51.100.3:80"), Proto: header.ProtoUDP, Kind: table.NodePort, Port: 80,
		}},
	}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Follow(&change)
	if n := len(r.servicePorts); n != 1 {
		t.Errorf("%d frontends are remembered, want the one that is served", n)
	}
}

// A program in the kernel that goes by the tables of the last process loses the flows whose
// endpoint is gone, and keeps others.
func TestRestoredFlowsOfRemovedEndpointsLeaveTheKernel(t *testing.T) {
	for _, stop := range []bool{false, true} {
		flows, err := conntrack.Open(conntrack.Config{MaxFlows: 1 << 10, Workers: 1, MaxEndpoints: 1 << 10})
		if err != nil {
			t.Fatal(err)
		}
		defer flows.Close()
		frontend := netip.MustParseAddrPort("198.51.100.3:53")
		tables := table.New(table.Config{Tick: flows.Tick})
		if _, err := tables.Apply([]table.Service{{
			Name:      "ns/a",
			Pools:     []table.Pool{{Endpoints: []table.Endpoint{{AddrPort: netip.MustParseAddrPort("10.1.0.5:53")}}}},
			Frontends: []table.Frontend{{AddrPort: frontend, Proto: header.ProtoUDP, Kind: table.NodePort, Port: 53}},
		}}, nil); err != nil {
			t.Fatal(err)
		}
		w := flows.Worker(0)
		w.Online()
		made := map[string]conntrack.Ref{}
		for i, endpoint := range []string{"10.1.0.5:53", "10.1.0.6:53"} {
			client := netip.AddrPortFrom(netip.MustParseAddr("192.0.2.1"), uint16(1000+i))
			ref, outcome := w.Create(&conntrack.NewFlow{
				Client:   conntrack.MakeKey(client, frontend, conntrack.ProtoUDP),
				Endpoint: netip.MustParseAddrPort(endpoint), EndpointID: conntrack.NoID, ServiceID: conntrack.NoID,
				Mode: conntrack.ModeDNAT, Tick: flows.Tick(), NextHop: 1<<32 | 1500<<16 | 3,
			})
			if outcome != conntrack.Created || flows.NextHop(ref)>>32 == 0 {
				t.Fatalf("flow to %s: outcome %d, next hop %#x", endpoint, outcome, flows.NextHop(ref))
			}
			made[endpoint] = ref
		}
		w.Offline()
		if n := New(flows, tables).Restore(stop, func(table.Key, netip.AddrPort, uint8) {}); n != 2 {
			t.Errorf("%d flows go on", n)
		}
		for endpoint, ref := range made {
			want := !stop || endpoint == "10.1.0.5:53"
			if has := flows.NextHop(ref)>>32 != 0; has != want {
				t.Errorf("stop %v: flow to %s has a next hop: %v", stop, endpoint, has)
			}
		}
	}
}
