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
