package announcer

import (
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/weirlb/weir/cmd/weir/config"
	"github.com/weirlb/weir/lb/announce"
	"github.com/weirlb/weir/lb/table"
	"github.com/weirlb/weir/topology"
)

// spoken is a Speaker that notes what it was given.
type spoken struct {
	routes  []announce.Route
	sets    int
	err     error
	adopted []netip.Prefix
	left    bool
	keeps   bool // during a restart
}

func (s *spoken) Set(want []announce.Route) error { s.routes = want; s.sets++; return s.err }
func (s *spoken) Peers() []announce.Peer          { return nil }
func (s *spoken) Adopted() []netip.Prefix         { return s.adopted }
func (s *spoken) Keeps() bool                     { return s.keeps }
func (s *spoken) Close() error                    { return nil }
func (s *spoken) Leave() error                    { s.left = true; return nil }

// webAt is a Service with a frontend per address and a number of endpoints.
func webAt(endpoints int, addresses ...string) table.Service {
	s := table.Service{Name: "test/web", Pools: []table.Pool{{}}}
	for i := range endpoints {
		s.Pools[0].Endpoints = append(s.Pools[0].Endpoints, table.Endpoint{AddrPort: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), 80)})
	}
	for _, a := range addresses {
		s.Frontends = append(s.Frontends, table.Frontend{AddrPort: netip.MustParseAddrPort(a + ":80"), Proto: 6, Kind: table.LoadBalancer})
	}
	return s
}

// serving is an announcer that serves two addresses.
func serving(s *spoken, settings announce.Settings) *Announcer {
	web := webAt(2, "203.0.113.1", "203.0.113.2")
	settings.Allow = []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24")}
	a := startAnnouncer(s, nil, settings)
	a.services[web.Name] = frontendsOf(&web)
	for i := range a.services[web.Name] {
		a.services[web.Name][i].Programmed = true
	}
	a.ask(announce.Node{})
	return a
}

// servingTables are the tables of serving.
func servingTables(t *testing.T) *table.Table {
	tables := table.New(table.Config{Tick: func() uint32 { return 0 }})
	if c, err := tables.Apply([]table.Service{webAt(2, "203.0.113.1", "203.0.113.2")}, nil); err != nil || len(c.Errors) > 0 {
		t.Fatal(err, c.Errors)
	}
	return tables
}

// A state of the node that was read before a stop announces nothing after it.
func TestStopIsForGood(t *testing.T) {
	s := &spoken{}
	a := serving(s, announce.Settings{})
	a.ask(announce.Node{Stopping: true})
	a.ask(announce.Node{})
	if len(s.routes) != 0 {
		t.Errorf("routes %v", s.routes)
	}
}

// Ten times a second nothing is decided again, unless the node, the time or an error calls for
// it.
func TestNothingIsDecidedWithoutAChange(t *testing.T) {
	s := &spoken{}
	a := serving(s, announce.Settings{})
	for range 10 {
		a.ask(announce.Node{})
	}
	if s.sets != 1 {
		t.Errorf("%d decisions without a change", s.sets)
	}
	s.err = errors.New("no session")
	a.ask(announce.Node{Draining: true})
	s.err = nil
	a.ask(announce.Node{Draining: true})
	if s.sets != 3 {
		t.Errorf("%d decisions after an error", s.sets)
	}
	s = &spoken{}
	a = serving(s, announce.Settings{Settle: time.Nanosecond})
	time.Sleep(time.Microsecond)
	if a.ask(announce.Node{}); len(s.routes) != 2 {
		t.Errorf("after the time to settle: %v", s.routes)
	}
}

// A publication withdraws, before it is made, the addresses that it takes away or leaves
// without an endpoint, and no others.
func TestWithdrawalComesBeforeThePublication(t *testing.T) {
	for name, c := range map[string]struct {
		put  []table.Service
		del  []string
		left int
	}{
		"nothing":            {left: 2},
		"deleted":            {del: []string{"test/web"}},
		"an address is gone": {put: []table.Service{webAt(2, "203.0.113.1")}, left: 1},
		"no endpoint":        {put: []table.Service{webAt(0, "203.0.113.1", "203.0.113.2")}},
		"fewer endpoints":    {put: []table.Service{webAt(1, "203.0.113.1", "203.0.113.2")}, left: 2},
		"one more address":   {put: []table.Service{webAt(2, "203.0.113.1", "203.0.113.2", "203.0.113.3")}, left: 2},
	} {
		t.Run(name, func(t *testing.T) {
			s := &spoken{}
			a := serving(s, announce.Settings{})
			if len(s.routes) != 2 {
				t.Fatalf("routes %v", s.routes)
			}
			a.Leaving(c.put, c.del, servingTables(t))
			if len(s.routes) != c.left {
				t.Errorf("routes %v, want %d", s.routes, c.left)
			}
		})
	}
}

// With Local policy, endpoints that terminate attract packets only while no node has a ready one.
func TestLocalEndpointsThatTerminateAreAnnouncedAsTheLast(t *testing.T) {
	s := webAt(1, "203.0.113.1")
	p := &s.Pools[0]
	for _, c := range []struct {
		name      string
		onEmpty   table.OnEmpty
		ready     bool
		endpoints int
		elsewhere bool
	}{
		{"Cluster policy", table.Reject, false, 1, false},
		{"no ready one anywhere", table.Drop, false, 1, false},
		{"a ready one elsewhere", table.Drop, true, 0, true},
	} {
		p.Tier, p.OnEmpty, p.AnyReady = string(topology.TierTerminating), c.onEmpty, c.ready
		if f := frontendsOf(&s)[0]; f.Endpoints != c.endpoints || f.Elsewhere != c.elsewhere {
			t.Errorf("%s: %+v", c.name, f)
		}
	}
	none := webAt(0, "203.0.113.1")
	if f := frontendsOf(&none)[0]; f.Endpoints != 0 || f.Elsewhere {
		t.Errorf("no endpoint at all, which Drop does not stand for: %+v", f)
	}
	none.Pools[0].OnEmpty = table.Drop // other nodes have some, which terminate
	if f := frontendsOf(&none)[0]; f.Endpoints != 0 || !f.Elsewhere {
		t.Errorf("terminating ones elsewhere: %+v", f)
	}
	s.Frontends[0].Kind = table.NodePort
	if list := frontendsOf(&s); len(list) != 0 {
		t.Errorf("a node port: %+v", list)
	}
}

// A closed announcer says nothing more.
func TestNothingIsAnnouncedAfterTheEnd(t *testing.T) {
	s := &spoken{}
	a := &Announcer{speaker: s}
	if err := a.Close(false); err != nil {
		t.Fatal(err)
	}
	s.routes = []announce.Route{{}}
	a.ask(announce.Node{})
	if len(s.routes) != 1 {
		t.Error("a route was set after the end")
	}
	if err := (*Announcer)(nil).Close(false); err != nil {
		t.Error(err)
	}
}

// Routes that are there before the process stay until it knows its Services, and then need not
// settle. Nothing else is announced meanwhile.
func TestRoutesOfTheLastProcessStayUntilTheFirstView(t *testing.T) {
	adopted := []netip.Prefix{netip.MustParsePrefix("203.0.113.1/32"), netip.MustParsePrefix("203.0.113.9/32")}
	s := &spoken{adopted: adopted}
	settings := announce.Settings{Allow: []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24")}, Settle: time.Hour}
	a := startAnnouncer(s, nil, settings)
	a.ask(announce.Node{NotSynced: true})
	a.Reload(config.Default())
	a.rule.SetSettings(settings)
	if s.sets != 0 {
		t.Fatalf("%d decisions before the first view", s.sets)
	}
	web := webAt(2, "203.0.113.1", "203.0.113.2")
	a.services[web.Name] = frontendsOf(&web)
	for i := range a.services[web.Name] {
		a.services[web.Name][i].Programmed = true
	}
	a.ask(announce.Node{})
	if len(s.routes) != 1 || s.routes[0].Prefix != adopted[0] {
		t.Errorf("routes %v, want %v", s.routes, adopted[0])
	}
	if s.keeps = true; !a.Keeps() {
		t.Error("the routes do not stay during a restart")
	}
	if err := a.Close(true); err != nil || !s.left || len(s.routes) != 1 {
		t.Errorf("before a restart: left %v, routes %v, %v", s.left, s.routes, err)
	}

	for name, n := range map[string]announce.Node{"drain": {NotSynced: true, Draining: true}, "stop": {NotSynced: true, Stopping: true}} {
		s := &spoken{adopted: adopted}
		if startAnnouncer(s, nil, settings).ask(n); s.sets != 1 {
			t.Errorf("%s: the routes stay", name)
		}
	}
	s = &spoken{adopted: adopted}
	a = startAnnouncer(s, nil, settings)
	a.held = time.Now()
	if a.ask(announce.Node{NotSynced: true, Unhealthy: "such"}); s.sets != 1 {
		t.Error("the routes stay for ever without a view")
	}
}
