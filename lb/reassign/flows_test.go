package reassign

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"
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
		a = netip.AddrPortFrom(netip.MustParseAddr("198.51.100.3"), uint16(79+i%2)) // these have a served port, or begin with it
		r.servicePorts[table.MakeRangeKey(a, 1000+uint16(i), header.ProtoUDP)] = 1
	}
	change, err := tables.Apply([]table.Service{{
		Name:  "ns/a",
		Pools: []table.Pool{{Endpoints: []table.Endpoint{{AddrPort: netip.MustParseAddrPort("10.1.0.5:8080")}}}},
		Frontends: []table.Frontend{{
			AddrPort: netip.MustParseAddrPort("198.51.100.3:80"), LastPort: 65535, Proto: header.ProtoUDP, Kind: table.NodePort, Port: 80,
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
		served := 0
		note := func(f *table.FrontendEntry, _ conntrack.Ref) {
			if served++; f.AddrPort != frontend {
				t.Errorf("a flow of %v", f.AddrPort)
			}
		}
		if n := New(flows, tables).Restore(stop, note, func(table.Key, netip.AddrPort, uint8) {}); n != 2 || served != n {
			t.Errorf("%d flows go on, %d of a frontend", n, served)
		}
		for endpoint, ref := range made {
			want := !stop || endpoint == "10.1.0.5:53"
			if has := flows.NextHop(ref)>>32 != 0; has != want {
				t.Errorf("stop %v: flow to %s has a next hop: %v", stop, endpoint, has)
			}
		}
	}
}

// UDP flows follow the frontend that has their port, be it of a range or of the port alone. Connections
// stay.
func TestUDPFlowsFollowRanges(t *testing.T) {
	at := netip.MustParseAddrPort("198.51.100.3:5066")
	const wide, narrow, one = "198.51.100.3:5060-5090", "198.51.100.3:5065-5070", "198.51.100.3:5066-0"
	gone := []table.Service{}
	for _, c := range []struct {
		name  string
		steps [][]table.Service // the flow begins after the first; a Service that a later one lacks is deleted
		stays bool
	}{
		{"to a range", [][]table.Service{{of("a", wide, 5066)}, {of("b", narrow, 5066)}}, false},
		{"to a range, after a time", [][]table.Service{{of("a", wide, 5066)}, gone, {of("b", narrow, 5066)}}, false},
		{"from a port to a range, after a time", [][]table.Service{{of("a", one, 5066)}, gone, {of("b", wide, 5066)}}, false},
		{"from a range to a port, after a time", [][]table.Service{{of("a", wide, 5066)}, gone, {of("b", one, 5066)}}, false},
		{"from a range to a port of it", [][]table.Service{{of("a", wide, 5066)}, {of("a", wide, 5066), of("b", one, 5066)}}, false},
		{"from a port to the range that has it", [][]table.Service{{of("a", wide, 5066), of("b", one, 5066)}, {of("a", wide, 5066)}}, false},
		{"from a range to one with fewer ports", [][]table.Service{{of("a", wide, 5066)}, {of("a", wide, 5066), of("b", narrow, 5066)}}, false},
		{"from a range to one with more ports", [][]table.Service{{of("a", wide, 5066), of("b", narrow, 5066)}, {of("a", wide, 5066)}}, false},
		{"from another port of the endpoint", [][]table.Service{{of("b", one, 9999)}, {of("b2", wide, 5066)}}, false},
		{"the range gets another size", [][]table.Service{{of("a", wide, 5066)}, {of("a", narrow, 5066)}}, true},
		{"the range is gone", [][]table.Service{{of("a", wide, 5066)}, {of("a", "198.51.100.3:5080-5090", 5066)}}, true},
		{"a range beside it", [][]table.Service{{of("a", narrow, 5066)}, {of("a", narrow, 5066), of("b", "198.51.100.3:5071-5090", 5066)}}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			flows, err := conntrack.Open(conntrack.Config{MaxFlows: 1 << 10, Workers: 1, MaxEndpoints: 1 << 10})
			if err != nil {
				t.Fatal(err)
			}
			defer flows.Close()
			tables := table.New(table.Config{Tick: flows.Tick})
			r, k := New(flows, tables), table.MakeKey(at, header.ProtoUDP)
			w := flows.Worker(0)
			var udp, tcp conntrack.Ref
			var before uint32
			for i, put := range c.steps {
				var del []string
				for _, name := range []string{"a", "b", "b2"} {
					if !slices.ContainsFunc(put, func(s table.Service) bool { return s.Name == name }) {
						del = append(del, name)
					}
				}
				change, err := tables.Apply(put, del)
				if err != nil || len(change.Errors) > 0 {
					t.Fatal(err, change.Errors)
				}
				r.Follow(&change)
				if i > 0 {
					continue
				}
				f := tables.Load().Lookup(&k)
				ep := &f.Pool.Endpoints()[0]
				n := &conntrack.NewFlow{
					Client:   conntrack.MakeKey(netip.MustParseAddrPort("192.0.2.1:1000"), at, conntrack.ProtoUDP),
					Endpoint: f.Target(ep, at.Port()), EndpointID: ep.ID, ServiceID: f.ServiceID,
					Mode: conntrack.ModeDNAT, Tick: flows.Tick(), NextHop: 1<<32 | 1500<<16 | 3,
				}
				w.Online()
				udp, _ = w.Create(n)
				n.Client = conntrack.MakeKey(n.Client.Src(), at, conntrack.ProtoTCP)
				tcp, _ = w.Create(n)
				w.Offline()
				before = f.ServiceID
			}
			want := before
			if !c.stays {
				want = tables.Load().Lookup(&k).ServiceID
			}
			if got := flows.Conn(udp).ServiceID; got != want {
				t.Errorf("the flow has service %d, want %d", got, want)
			}
			_, removed := tables.EndpointRemoved(flows.Conn(udp).EndpointID)
			if removed == c.stays {
				t.Errorf("the endpoint counts as gone: %v", removed)
			}
			if got := flows.Conn(tcp).ServiceID; got != before {
				t.Errorf("the connection has service %d, want %d", got, before)
			}
		})
	}
}

// of is a Service with a range of ports, or with a port alone if the last port is 0, and an endpoint by
// the first letter of the name, which it lists with a port.
func of(name, ports string, listed uint16) table.Service {
	first, last, _ := strings.Cut(ports, "-")
	n, _ := strconv.Atoi(last)
	endpoint := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1, 0, name[0]}), listed)
	return table.Service{
		Name: name, Pools: []table.Pool{{Endpoints: []table.Endpoint{{AddrPort: endpoint}}}},
		Frontends: []table.Frontend{{AddrPort: netip.MustParseAddrPort(first), LastPort: uint16(n), Port: 5066, Proto: header.ProtoUDP, Kind: table.LoadBalancer}},
	}
}
