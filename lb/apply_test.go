package lb

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/weirlb/weir/lb/header"
	"github.com/weirlb/weir/lb/steer"
	"github.com/weirlb/weir/lb/table"
)

// on is a Service with one frontend per port, on address a.
func on(name string, a netip.Addr, kind table.Kind, ports ...uint16) table.Service {
	s := table.Service{Name: name, Pools: []table.Pool{{}}}
	for _, p := range ports {
		s.Frontends = append(s.Frontends, table.Frontend{AddrPort: ap(a, p), Proto: header.ProtoTCP, Kind: kind})
	}
	return s
}

func TestAFrontendThatFoundNoRoomIsSteeredLater(t *testing.T) {
	p := loaded(t, steer.Config{MaxFrontends: 2})
	l := newControl(t, Config{}, p)
	l.attached = true
	if err := l.Apply([]table.Service{on("ns/a", node4, table.NodePort, 1001, 1002)}, nil, nil); err != nil {
		t.Fatal(err)
	}
	if err := l.Apply([]table.Service{on("ns/b", node4, table.NodePort, 1003)}, nil, nil); !errors.Is(err, steer.ErrFull) {
		t.Fatalf("error %v, want %v", err, steer.ErrFull)
	}
	if err := l.Apply(nil, []string{"ns/a"}, nil); err != nil {
		t.Errorf("there is room again: %v", err)
	}
	got, err := p.Frontends()
	if err != nil || len(got) != 1 || got[0].AddrPort != ap(node4, 1003) {
		t.Errorf("steered: %v (%v)", got, err)
	}
	// One that goes unsteered is forgotten.
	_ = l.Apply([]table.Service{on("ns/c", node4, table.NodePort, 1004, 1005)}, nil, nil)
	if err := l.Apply(nil, []string{"ns/b", "ns/c"}, nil); err != nil {
		t.Error(err)
	}
	if got, _ := p.Frontends(); len(got) != 0 || len(l.Unsteered()) != 0 {
		t.Errorf("steered: %v, waiting: %v", got, l.Unsteered())
	}
}

// A frontend may become another Service's, and another kind, in one step.
func TestClaimsFollowTheKind(t *testing.T) {
	a := netip.MustParseAddr("198.51.100.77")
	cr := newClientRoutes(nil, nil)
	entry := func(port uint16, k table.Kind) []*table.FrontendEntry {
		return []*table.FrontendEntry{{Key: table.MakeKey(ap(a, port), header.ProtoTCP), AddrPort: ap(a, port), Kind: k}}
	}
	steps := []struct {
		change table.Change
		want   int
	}{
		{table.Change{Added: entry(80, table.NodePort)}, 0},
		{table.Change{Changed: entry(80, table.LoadBalancer)}, 1},
		{table.Change{Changed: entry(80, table.ExternalIP)}, 1},
		{table.Change{Added: entry(81, table.LoadBalancer)}, 2},
		{table.Change{Changed: entry(80, table.ClusterIP)}, 1},
		{table.Change{Removed: entry(80, table.ClusterIP)}, 1},
		{table.Change{Removed: entry(81, table.LoadBalancer)}, 0},
	}
	for i, s := range steps {
		if err := cr.follow(&s.change); err != nil || cr.claims[a] != s.want {
			t.Errorf("step %d: %d claims, want %d (%v)", i, cr.claims[a], s.want, err)
		}
	}
	if len(cr.claims)+len(cr.claimed) != 0 {
		t.Errorf("left over: %v %v", cr.claims, cr.claimed)
	}
}

func TestARefreshThatFailedIsRepeated(t *testing.T) {
	for _, room := range []int{1, 16} {
		l := newControl(t, Config{SNATAddresses: []netip.Addr{snat4, snat6}}, loaded(t, steer.Config{MaxSNAT: room}))
		if again := l.followAddresses() != nil; again != (room == 1) {
			t.Errorf("room for %d addresses: to be tried again: %v", room, again)
		}
	}
}
