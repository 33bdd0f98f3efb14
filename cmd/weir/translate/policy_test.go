package translate

import (
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/weirlb/weir/discovery"
	"github.com/weirlb/weir/lb/table"
	"github.com/weirlb/weir/topology"
)

// translated is what the table is given of a Service.
func translated(t *testing.T, opts Options, svc *discovery.Service) table.Service {
	t.Helper()
	opts.NodeAddresses = []netip.Addr{node1}
	b := New(opts).Apply(update(svc))
	if len(b.Put) != 1 {
		t.Fatalf("batch %+v", b)
	}
	return b.Put[0]
}

func TestPolicyOfAService(t *testing.T) {
	ranges := []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}
	for name, test := range map[string]struct {
		change func(*discovery.Service)
		want   *table.Policy
	}{
		"nothing asked":  {nil, nil},
		"ranges":         {func(s *discovery.Service) { s.SourceRanges = ranges }, &table.Policy{SourceRanges: ranges}},
		"reset":          {func(s *discovery.Service) { s.Options.OnRemoval = discovery.RemovalReset }, &table.Policy{OnRemoval: table.ResetFlows}},
		"drop":           {func(s *discovery.Service) { s.Options.OnRemoval = discovery.RemovalDrop }, &table.Policy{OnRemoval: table.DropFlows}},
		"most at a time": {func(s *discovery.Service) { s.Options.MaxConnections = 5 }, &table.Policy{MaxConnections: 5}},
		"rate":           {func(s *discovery.Service) { s.Options.NewConnectionsPerSecond = 6 }, &table.Policy{NewConnectionsPerSecond: 6}},
		"clamp":          {func(s *discovery.Service) { s.Options.MSSClamp = discovery.MSSClampAuto }, &table.Policy{MSSClamp: table.MSSClampAuto}},
		"connection ID": {func(s *discovery.Service) {
			s.Options.QUICConnectionID = discovery.QUICConnectionID{Offset: 1, Length: 4, Marked: true}
		}, &table.Policy{QUICConnectionID: table.QUICConnectionID{Offset: 1, Length: 4, Marked: true}}},
	} {
		got := translated(t, Options{}, service("web", test.change, "10.1.1.1:80")).Policy
		if diff := cmp.Diff(test.want, got, cmpopts.IgnoreUnexported(table.Policy{}), cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestAlgorithmAndSlowStart(t *testing.T) {
	for _, test := range []struct {
		random bool
		asked  discovery.Algorithm
		want   table.Algorithm
	}{
		{false, discovery.AlgorithmDefault, table.Maglev}, {true, discovery.AlgorithmDefault, table.Random},
		{true, discovery.AlgorithmMaglev, table.Maglev}, {false, discovery.AlgorithmRandom, table.Random},
		{false, discovery.AlgorithmLeastConn, table.LeastConn},
	} {
		svc := service("web", func(s *discovery.Service) {
			s.Options.Algorithm, s.Options.SlowStart = test.asked, 1500*time.Millisecond
		}, "10.1.1.1:80")
		p := translated(t, Options{Random: test.random}, svc).Pools[0]
		if p.Algorithm != test.want || p.SlowStart != 24 {
			t.Errorf("%+v: %v, slow start %d ticks", test, p.Algorithm, p.SlowStart)
		}
	}
}

func TestWeightsReachThePool(t *testing.T) {
	svc := service("web", nil, "10.1.1.1:80 a", "10.1.1.2:80 a", "10.1.1.3:80 b")
	svc.Ports[0].Endpoints[1].Weight = 7
	s := translated(t, Options{}, svc)
	want := []uint32{1, 7, 1}
	for i, e := range s.Pools[s.Frontends[0].Pool].Endpoints {
		if e.Weight != want[i] {
			t.Errorf("%v weighs %d, want %d", e.AddrPort, e.Weight, want[i])
		}
	}
	// In a tier that spills over an endpoint's part is by its weight too.
	svc = service("web", func(s *discovery.Service) {
		s.Policy.Distribution, s.Policy.MinReadyPercent = topology.PreferSameNode, 100
	}, "10.1.1.1:80 a z", "10.1.1.2:80 a z", "10.1.1.3:80! a z", "10.1.1.4:80! a z", "10.1.1.5:80 b z")
	svc.Ports[0].Endpoints[0].Weight = 3
	s = translated(t, Options{Node: topology.Node{Name: "a", Labels: map[string]string{topology.LabelZone: "z"}}}, svc)
	want = []uint32{shareUnit * 3 / 8, shareUnit / 8, shareUnit / 2}
	for i, e := range s.Pools[0].Endpoints {
		if e.Weight != want[i] {
			t.Errorf("%v has the share %d, want %d", e.AddrPort, e.Weight, want[i])
		}
	}
}

func TestFrontendsOfAPortShareItsAffinity(t *testing.T) {
	svc := service("web", func(s *discovery.Service) { s.LoadBalancerIPs = addrs("198.51.100.1"); s.AffinitySeconds = 60 }, "10.1.1.1:80")
	s := translated(t, Options{}, svc)
	if len(s.Frontends) != 2 || s.Pools[0].AffinitySeconds != 60 {
		t.Fatalf("%+v", s)
	}
	for _, f := range s.Frontends {
		if f.Port != 80 {
			t.Errorf("%v %v belongs to port %d", f.Kind, f.AddrPort, f.Port)
		}
	}
}
