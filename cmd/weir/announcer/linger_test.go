package announcer

import (
	"net/netip"
	"testing"
	"time"

	"github.com/weirlb/weir/lb/announce"
	"github.com/weirlb/weir/lb/table"
)

// The frontends of an address that a change withdraws are served as before for a time, and the
// change takes effect afterwards. All else of the change takes effect at once.
func TestFrontendsOfWithdrawnAddressesLinger(t *testing.T) {
	const first, second = "203.0.113.1", "203.0.113.2"
	type state map[string]int // endpoints by address; absent: no frontend
	two := webAt(2, first, second)
	withPort := func(s table.Service, port uint16) table.Service {
		s.Frontends = append(s.Frontends, table.Frontend{AddrPort: netip.AddrPortFrom(netip.MustParseAddr(first), port), Proto: 6, Kind: table.LoadBalancer})
		return s
	}
	other := webAt(1, first)
	other.Name, other.Created = "test/other", 7
	older := func(s table.Service) table.Service {
		s.Created = 3
		return s
	}
	for name, c := range map[string]struct {
		time   time.Duration
		before []table.Service // published first
		drain  bool            // the node is drained then
		put    []table.Service
		del    []string
		again  []table.Service // published next, within the time
		want   state           // then
		end    state           // when the time is up
	}{
		"deleted":                    {time: time.Hour, del: []string{two.Name}, want: state{first: 2, second: 2}, end: state{}},
		"deleted, no time":           {del: []string{two.Name}, want: state{}, end: state{}},
		"drained, and deleted":       {time: time.Hour, drain: true, del: []string{two.Name}, want: state{first: 2, second: 2}, end: state{}},
		"drained, and deleted later": {time: time.Nanosecond, drain: true, del: []string{two.Name}, want: state{}, end: state{}},
		"drained, and no endpoint": {
			time: time.Hour, drain: true, put: []table.Service{webAt(0, first)}, want: state{first: 2, second: 2}, end: state{first: 0},
		},
		"an address is gone": {time: time.Hour, put: []table.Service{webAt(1, second)}, want: state{first: 2, second: 1}, end: state{second: 1}},
		"no endpoint": {
			time: time.Hour, put: []table.Service{webAt(0, first, second)}, want: state{first: 2, second: 2}, end: state{first: 0, second: 0},
		},
		"no endpoint, then others": {
			time: time.Hour, put: []table.Service{webAt(0, first, second)}, again: []table.Service{webAt(1, first, second)},
			want: state{first: 1, second: 1}, end: state{first: 1, second: 1},
		},
		"deleted, then made again": {
			time: time.Hour, del: []string{two.Name}, again: []table.Service{webAt(1, first)}, want: state{first: 1, second: 2}, end: state{first: 1},
		},
		"no endpoint, twice": {
			time: time.Hour, put: []table.Service{webAt(0, first, second)}, again: []table.Service{webAt(0, first)},
			want: state{first: 2, second: 2}, end: state{first: 0},
		},
		"deleted, and given to another": {
			time: time.Hour, del: []string{two.Name}, again: []table.Service{other}, want: state{first: 1, second: 2}, end: state{first: 1},
		},
		"an address is gone, and given to a younger Service": {
			time: time.Hour, before: []table.Service{older(two)}, put: []table.Service{older(webAt(1, second))}, again: []table.Service{other},
			want: state{first: 1, second: 1}, end: state{first: 1, second: 1},
		},
		"deleted, made again without the address, and that given to a younger Service": {
			time: time.Hour, del: []string{two.Name}, again: []table.Service{older(webAt(1, second)), other},
			want: state{first: 1, second: 1}, end: state{first: 1, second: 1},
		},
		"a port of an address that stays": {
			time: time.Hour, before: []table.Service{withPort(two, 81)}, put: []table.Service{two}, want: state{first: 2, second: 2}, end: state{first: 2, second: 2},
		},
		"fewer endpoints": {time: time.Hour, put: []table.Service{webAt(1, first, second)}, want: state{first: 1, second: 1}, end: state{first: 1, second: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			s := &spoken{}
			a := startAnnouncer(s, nil, announce.Settings{Allow: []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24")}})
			a.ask(announce.Node{})
			a.lingering.time.Store(int64(c.time))
			tables := table.New(table.Config{Tick: func() uint32 { return 0 }})
			apply := func(put []table.Service, del []string) {
				t.Helper()
				if _, err := tables.Apply(put, del); err != nil {
					t.Fatal(err)
				}
			}
			publish := func(put []table.Service, del []string) {
				t.Helper()
				now, gone, _ := a.Leaving(put, del, tables)
				apply(now, gone)
				a.published(put, tables.Load(), func(table.Key) bool { return true })
			}
			compare := func(when string, want state) {
				t.Helper()
				n := tables.Load().Frontends()
				for _, at := range []string{first, second} {
					k := table.MakeKey(netip.MustParseAddrPort(at+":80"), 6)
					got := tables.Load().Lookup(&k)
					if endpoints, has := want[at]; has != (got != nil) || has && got.Pool.Len() != endpoints {
						t.Errorf("%s: %s is %+v, want %v", when, at, got, want)
					}
				}
				if n != len(want) {
					t.Errorf("%s: %d frontends, want %v", when, n, want)
				}
			}
			if c.before == nil {
				c.before = []table.Service{two}
			}
			publish(c.before, nil)
			a.ask(announce.Node{Draining: c.drain})
			publish(c.put, c.del)
			if c.again != nil {
				publish(c.again, nil)
			}
			compare("within the time", c.want)
			if b := a.lingering.end(time.Now()); len(b.Put)+len(b.Delete) > 0 {
				t.Errorf("too early: %+v", b)
			}
			b := a.lingering.end(time.Now().Add(2 * time.Hour))
			apply(b.Put, b.Delete)
			compare("at the end", c.end)
			if a.lingers() {
				t.Errorf("left: %+v", a.lingering.services)
			}
		})
	}
}

// A change of the source ranges takes effect at once, also if the Service is deleted next.
func TestSourceRangesDoNotLinger(t *testing.T) {
	const address = "203.0.113.1"
	for range 10 { // maps have no order
		a := startAnnouncer(&spoken{}, nil, announce.Settings{Allow: []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24")}})
		a.ask(announce.Node{})
		a.lingering.time.Store(int64(time.Hour))
		tables := table.New(table.Config{})
		publish := func(put []table.Service, del []string) {
			t.Helper()
			now, gone, _ := a.Leaving(put, del, tables)
			if _, err := tables.Apply(now, gone); err != nil {
				t.Fatal(err)
			}
			a.published(put, tables.Load(), func(table.Key) bool { return true })
		}
		closed := webAt(0, address)
		closed.Policy = &table.Policy{SourceRanges: []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")}}
		publish([]table.Service{webAt(2, address)}, nil)
		publish([]table.Service{webAt(0, address)}, nil)
		for _, step := range []struct {
			put []table.Service
			del []string
		}{{put: []table.Service{closed}}, {del: []string{closed.Name}}} {
			publish(step.put, step.del)
			k := table.MakeKey(netip.MustParseAddrPort(address+":80"), 6)
			got := tables.Load().Lookup(&k)
			if got == nil || got.Pool.Len() != 2 {
				t.Fatalf("it does not linger: %+v", got)
			}
			if got.Policy.Admits(got.Kind, netip.MustParseAddr("192.0.2.1")) {
				t.Fatalf("del %v: the last source ranges are in force", step.del)
			}
		}
	}
}

// A frontend that lingers yields where it would keep ports from that of another Service: frontends with fewer ports
// have them.
func TestLingeringFrontendsYieldToRanges(t *testing.T) {
	const vip = "203.0.113.1"
	at := func(name string, first, last uint16) table.Service {
		s := webAt(1, vip)
		s.Name = name
		s.Frontends[0].AddrPort, s.Frontends[0].LastPort = netip.AddrPortFrom(netip.MustParseAddr(vip), first), last
		return s
	}
	for name, c := range map[string]struct {
		had, claimed [2]uint16
		want         bool // it lingers
	}{
		"the same":                {[2]uint16{80, 90}, [2]uint16{80, 90}, false},
		"a port in a range":       {[2]uint16{85, 0}, [2]uint16{80, 90}, false},
		"a range in a range":      {[2]uint16{82, 84}, [2]uint16{80, 90}, false},
		"ranges with common ones": {[2]uint16{75, 85}, [2]uint16{80, 90}, false},
		"a range with the port":   {[2]uint16{80, 90}, [2]uint16{85, 0}, true},
		"other ports":             {[2]uint16{80, 90}, [2]uint16{91, 95}, true},
	} {
		t.Run(name, func(t *testing.T) {
			a := startAnnouncer(&spoken{}, nil, announce.Settings{Allow: []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24")}})
			a.ask(announce.Node{})
			a.lingering.time.Store(int64(time.Hour))
			tables := table.New(table.Config{Tick: func() uint32 { return 0 }})
			publish := func(put []table.Service, del []string) {
				now, gone, _ := a.Leaving(put, del, tables)
				if _, err := tables.Apply(now, gone); err != nil {
					t.Fatal(err)
				}
				a.published(put, tables.Load(), func(table.Key) bool { return true })
			}
			publish([]table.Service{at("test/had", c.had[0], c.had[1])}, nil)
			publish(nil, []string{"test/had"})
			if tables.Load().Frontends() != 1 {
				t.Fatal("it does not linger")
			}
			publish([]table.Service{at("test/claims", c.claimed[0], c.claimed[1])}, nil)
			if got := tables.Load().Frontends() == 2; got != c.want {
				t.Errorf("lingers: %t, want %t", got, c.want)
			}
		})
	}
}
