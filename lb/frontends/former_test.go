package frontends

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/header"
	"github.com/weirlb/weir/lb/route"
	"github.com/weirlb/weir/lb/steer"
	"github.com/weirlb/weir/lb/table"
)

var node4 = netip.MustParseAddr("198.51.100.1")

func frontendOf(service string, port uint16) *table.FrontendEntry {
	a := netip.AddrPortFrom(node4, port)
	return &table.FrontendEntry{Key: table.MakeKey(a, header.ProtoTCP), AddrPort: a, Proto: header.ProtoTCP, ServiceName: service}
}

// A tenant that makes and deletes Services displaces its own former frontends, and of others none.
func TestFormerFrontendsOfANamespaceDisplaceEachOther(t *testing.T) {
	f := newFormer()
	now := time.Now()
	quiet := frontendOf("quiet/web", 1)
	f.add(quiet, now)
	for i := range maxFormer + 100 {
		e := frontendOf(fmt.Sprintf("busy/%d", i), uint16(2+i))
		if out := f.add(e, now.Add(time.Duration(i))); (out != nil) != (i >= maxFormer-1) || out != nil && out.ServiceName != fmt.Sprintf("busy/%d", i-maxFormer+1) {
			t.Fatalf("frontend %d displaces %+v", i, out)
		}
	}
	if len(f.byKey) != maxFormer || f.byKey[quiet.Key] == nil {
		t.Errorf("%d former frontends, that of another namespace %v", len(f.byKey), f.byKey[quiet.Key])
	}
	f.remove(quiet.Key)
	if len(f.owners) != 1 || len(f.byKey) != maxFormer-1 {
		t.Errorf("%d namespaces, %d former frontends", len(f.owners), len(f.byKey))
	}
}

func rangeOf(service string, first uint16) *table.FrontendEntry {
	a := netip.AddrPortFrom(node4.Next(), first)
	return &table.FrontendEntry{Key: table.MakeRangeKey(a, first+9, header.ProtoTCP), AddrPort: a, LastPort: first + 9, Proto: header.ProtoTCP, ServiceName: service}
}

// A range too many of an address takes the place of a former range there, and of nothing else.
func TestARangeTooManyDisplacesFormerRangesAlone(t *testing.T) {
	s := newSet(t)
	single := frontendOf("other/web", 80)
	other := rangeOf("other/range", 100)
	for _, f := range []*table.FrontendEntry{single, other} {
		if err := errors.Join(s.Add([]*table.FrontendEntry{f}), s.Remove([]*table.FrontendEntry{f}, true)); err != nil {
			t.Fatal(err)
		}
	}
	for i := range uint16(steer.MaxRanges) { // the last takes the place of the former range
		if err := s.Add([]*table.FrontendEntry{rangeOf("busy/r", 1000+100*i)}); err != nil {
			t.Fatalf("range %d: %v", i, err)
		}
	}
	if s.former.byKey[other.Key] != nil || s.former.byKey[single.Key] == nil {
		t.Error("another frontend than the former range has made room")
	}
	stuck := rangeOf("busy/r", 5000)
	if err := s.Add([]*table.FrontendEntry{stuck}); !errors.Is(err, steer.ErrManyRanges) {
		t.Fatalf("a range too many: %v", err)
	}
	if err := s.Add(nil); err != nil || s.unsteered[stuck.Key] == nil || s.former.byKey[single.Key] == nil {
		t.Errorf("%v; unsteered %v, former %v", err, s.unsteered, s.former.byKey)
	}
}

// newSet makes a set with a steering program of two frontends, and a flow table.
func newSet(t *testing.T) *Set {
	t.Helper()
	p, err := steer.Load(steer.Config{MaxFrontends: 2})
	if errors.Is(err, unix.EPERM) {
		t.Skip("needs CAP_BPF")
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close(true) })
	flows, err := conntrack.Open(conntrack.Config{MaxFlows: 1 << 10, Workers: 1, MaxEndpoints: 1 << 10})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { flows.Close() })
	router := route.Static(map[netip.Prefix]route.Path{
		netip.PrefixFrom(node4, 32): {Kind: route.Host, Local: true, MTU: 1500},
	}, nil)
	return New(Config{
		Program: p, Flows: flows, Tables: table.New(table.Config{Tick: flows.Tick}), Router: router,
		KeepFormer: true, Routed: func(netip.Addr) bool { return false }, Unroute: func(time.Time) error { return nil }, Log: slog.New(slog.DiscardHandler),
	})
}

func steered(t *testing.T, s *Set) map[uint16]bool {
	t.Helper()
	list, err := s.cfg.Program.Frontends()
	if err != nil {
		t.Fatal(err)
	}
	out := map[uint16]bool{} // by port, whether for flows only
	for _, f := range list {
		out[f.AddrPort.Port()] = f.Flags&steer.FlowsOnly != 0
	}
	return out
}

// A former frontend makes room for a frontend of a Service, and is the Service's again when that
// claims it.
func TestFormerFrontendsMakeRoom(t *testing.T) {
	s := newSet(t)
	a, b, c := frontendOf("ns/a", 1), frontendOf("ns/b", 2), frontendOf("ns/c", 3)
	for _, f := range []*table.FrontendEntry{a, b} {
		if err := s.add(f); err != nil {
			t.Fatal(err)
		}
	}
	udp := *frontendOf("ns/u", 4)
	udp.Proto = header.ProtoUDP
	if gone := s.keep([]*table.FrontendEntry{a, b, &udp}, true); len(gone) != 1 || gone[0] != &udp {
		t.Fatalf("of UDP nothing stays, and no other leaves: %v", gone)
	}
	if got := steered(t, s); len(got) != 2 || !got[1] || !got[2] {
		t.Errorf("steered, for flows only: %v", got)
	}
	if err := s.add(c); err != nil {
		t.Fatal(err)
	}
	if got := steered(t, s); len(got) != 2 || got[3] || !got[2] {
		t.Errorf("after the Service's: %v", got)
	}
	if err := s.add(b); err != nil {
		t.Fatal(err)
	}
	if got := steered(t, s); len(got) != 2 || got[2] || len(s.former.byKey) != 0 {
		t.Errorf("claimed again: %v", got)
	}
}

// A change of deny lists that the steering program refuses is made again, unless the frontend goes.
func TestAChangeThatFailsIsMadeAgain(t *testing.T) {
	for _, again := range []string{"by the next change", "by Run", "not after the removal"} {
		s := newSet(t) // for two frontends
		a, b, c := frontendOf("ns/a", 1), frontendOf("ns/b", 2), frontendOf("ns/c", 3)
		if err := s.Add([]*table.FrontendEntry{a, b}); err != nil {
			t.Fatal(err)
		}
		c.Policy = &table.Policy{DenyLists: 5}
		if err := s.Change([]*table.FrontendEntry{c}); !errors.Is(err, steer.ErrFull) {
			t.Fatalf("the change did not fail: %v", err)
		}
		if again == "not after the removal" {
			s.Remove([]*table.FrontendEntry{c}, false)
		}
		if err := s.Remove([]*table.FrontendEntry{a}, false); err != nil {
			t.Fatal(err)
		}
		if again == "by Run" {
			s.settle(t.Context(), &sync.Mutex{}, func() bool { return true })
		} else if err := s.Change(nil); err != nil {
			t.Error(err)
		}
		if _, got := steered(t, s)[3]; got == (again == "not after the removal") || len(s.stale) > 0 || got && s.lists[c.Key] != 5 {
			t.Errorf("%s: steered %v, %v", again, got, s.lists)
		}
	}
}

// A former frontend ends with the last connection.
func TestFormerFrontendsEndWithTheirConnections(t *testing.T) {
	s := newSet(t)
	a, b := frontendOf("ns/a", 1), frontendOf("ns/b", 2)
	ref, _ := s.cfg.Flows.Worker(0).Create(&conntrack.NewFlow{
		Client: conntrack.MakeKey(netip.MustParseAddrPort("192.0.2.9:4000"), a.AddrPort, header.ProtoTCP), Mode: conntrack.ModeNAT,
		Endpoint: netip.MustParseAddrPort("10.0.0.1:80"), SNAT: node4, PortLo: 61000, PortHi: 61010,
	})
	if ref == 0 {
		t.Fatal("no flow")
	}
	s.keep([]*table.FrontendEntry{a, b}, true)
	stuck := false
	settle := func() { s.settle(t.Context(), new(sync.Mutex), func() bool { return stuck }) }
	settle() // too early: a worker may still make a connection
	if got := steered(t, s); len(got) != 2 {
		t.Errorf("steered %v", got)
	}
	later := func() {
		for _, x := range s.former.byKey {
			x.since = x.since.Add(-settleTime)
		}
		for k, since := range s.former.datagrams {
			s.former.datagrams[k] = since.Add(-settleTime)
		}
		s.former.look = time.Time{}
	}
	later()
	settle()
	if got := steered(t, s); len(got) != 1 || !got[1] {
		t.Errorf("steered %v, want that with a connection", got)
	}
	datagram := *frontendOf("ns/u", 3)
	datagram.Proto = header.ProtoUDP
	datagram.Key = table.MakeKey(datagram.AddrPort, header.ProtoUDP)
	if udp, _ := s.cfg.Flows.Worker(0).Create(&conntrack.NewFlow{
		Client: conntrack.MakeKey(netip.MustParseAddrPort("192.0.2.9:4000"), datagram.AddrPort, header.ProtoUDP), Mode: conntrack.ModeNAT,
		Endpoint: netip.MustParseAddrPort("10.0.0.1:80"), SNAT: node4, PortLo: 61000, PortHi: 61010,
	}); udp == 0 {
		t.Fatal("no flow")
	}
	s.keep([]*table.FrontendEntry{&datagram}, true)
	later()
	settle()
	if n := s.cfg.Flows.Flows(); n != 1 {
		t.Errorf("%d flows, want that of TCP", n)
	}
	s.cfg.Flows.Delete(ref)
	later()
	stuck = true
	settle() // a worker may hold a flow
	if got := steered(t, s); len(got) != 1 {
		t.Errorf("beside a stuck worker: steered %v", got)
	}
	stuck = false
	settle()
	if got := steered(t, s); len(got) != 0 {
		t.Errorf("steered %v", got)
	}
}

// second is a lock that calls f when it is taken the second time.
type second struct {
	n int
	f func()
}

func (l *second) Lock() {
	if l.n++; l.n == 2 {
		l.f()
	}
}

func (l *second) Unlock() {}

// The kernel forwards the flows of a Service again when the flows of a lost frontend have settled, but
// not of a Service that has lost another meanwhile.
func TestFlowsOfAServiceThatLosesFrontendsAreNotTheKernels(t *testing.T) {
	s := newSet(t)
	removed := map[uint32]bool{}
	s.cfg.ServiceRemoved = func(n uint32, is bool) { removed[n] = is }
	lose := func(service uint32) {
		f := frontendOf("ns/a", uint16(service))
		f.ServiceID, f.Proto = service, header.ProtoUDP
		if err := s.Remove([]*table.FrontendEntry{f}, true); err != nil {
			t.Fatal(err)
		}
	}
	lose(1)
	lose(2)
	s.settleWithdrawals(t.Context(), new(sync.Mutex))
	if !removed[1] || !removed[2] {
		t.Errorf("at once: %v", removed)
	}
	s.withdrawn.since = s.withdrawn.since.Add(-settleTime)
	s.settleWithdrawals(t.Context(), &second{f: func() { lose(2) }})
	if removed[1] || !removed[2] {
		t.Errorf("settled: %v", removed)
	}
}

// A frontend may be a Service's again before its connections are looked for: the route of the node's
// own clients then stays, and so do their connections.
func TestConnectionsOfTheNodesClientsGoOnWithTheirFrontend(t *testing.T) {
	s := newSet(t)
	at := netip.MustParseAddrPort("203.0.113.9:80")
	w := s.cfg.Flows.Worker(0)
	w.Online()
	ref, _ := w.Create(&conntrack.NewFlow{
		Client: conntrack.MakeKey(netip.AddrPortFrom(node4, 4000), at, header.ProtoTCP), Mode: conntrack.ModeNAT,
		Endpoint: netip.MustParseAddrPort("10.0.0.1:80"), SNAT: node4, PortLo: 61000, PortHi: 61010,
	})
	w.Offline()
	if ref == 0 {
		t.Fatal("no flow")
	}
	k := table.MakeKey(at, header.ProtoTCP)
	due := map[table.Key]*formerFrontend{k: {unrouted: true}}
	svc := table.Service{
		Name: "ns/a", Pools: []table.Pool{{}},
		Frontends: []table.Frontend{{AddrPort: at, Proto: header.ProtoTCP, Kind: table.LoadBalancer}},
	}
	for _, back := range []bool{true, false} {
		put, del := []table.Service{svc}, []string(nil)
		if !back {
			put, del = nil, []string{svc.Name}
		}
		if _, err := s.cfg.Tables.Apply(put, del); err != nil {
			t.Fatal(err)
		}
		if s.look(t.Context(), due, nil); s.cfg.Flows.Conn(ref).Aborted() == back {
			t.Errorf("a Service has the frontend again: %v: the connection is ended: %v", back, !back)
		}
	}
}
