package flowlog

import (
	"context"
	"log/slog"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/conntrack/flowstate"
	"github.com/weirlb/weir/discovery"
	"github.com/weirlb/weir/topology"
)

// The reason follows from the last state, and from the cause where that says more.
func TestReasonsOfAnEnd(t *testing.T) {
	const (
		known = flowstate.ClientKnown | flowstate.EndpointKnown
		dsr   = flowstate.ClientOnly
	)
	for _, c := range []struct {
		name  string
		state flowstate.State
		bits  uint32
		cause conntrack.Cause
		want  Reason
	}{
		{"both FINs are acknowledged", flowstate.TimeWait, known, conntrack.CauseExpired, Closed},
		{"the port of a closed connection passes on", flowstate.TimeWait, known, conntrack.CausePort, Closed},
		{"the client begins anew", flowstate.TimeWait, known, conntrack.CauseReplaced, Closed},
		{"the client's FIN, of direct server return", flowstate.Established, dsr | flowstate.FinClient, conntrack.CauseExpired, Closed},
		{"a RST", flowstate.Close, known, conntrack.CauseExpired, Reset},
		{"a RST of the client, of direct server return", flowstate.Close, dsr | flowstate.ClientKnown, conntrack.CauseExpired, Reset},
		{"a RST in place of the SYN-ACK", flowstate.Close, flowstate.ClientKnown, conntrack.CauseExpired, Refused},
		{"the operator has ended it", flowstate.Close, known | flowstate.Aborted, conntrack.CauseExpired, Ended},
		{"the endpoint is gone", flowstate.Replied, 0, conntrack.CauseDeleted, Removed},
		{"nobody has spoken", flowstate.Established, known, conntrack.CauseExpired, Idle},
		{"a single FIN", flowstate.FinWait, known | flowstate.FinClient, conntrack.CauseExpired, Idle},
		{"a query and its answer", flowstate.Replied, 0, conntrack.CauseExpired, Idle},
		{"datagrams of direct server return", flowstate.Unreplied, dsr, conntrack.CauseExpired, Idle},
		{"no SYN-ACK", flowstate.SynSent, flowstate.ClientKnown, conntrack.CauseExpired, NoAnswer},
		{"no answer to a datagram", flowstate.Unreplied, 0, conntrack.CauseExpired, NoAnswer},
		{"no ACK of the client", flowstate.SynRecv, known, conntrack.CauseExpired, HalfOpen},
		{"no ACK of the client, of direct server return", flowstate.SynSent, dsr, conntrack.CauseExpired, HalfOpen},
		{"a flood", flowstate.SynSent, flowstate.ClientKnown, conntrack.CauseEvicted, Evicted},
		{"few ports", flowstate.Stream, 0, conntrack.CausePort, PortTaken},
	} {
		r := conntrack.Record{Word: uint32(c.state) | c.bits, Cause: c.cause, Client: conntrack.MakeKey(netip.AddrPort{}, netip.AddrPort{}, 6)}
		if got := reasonOf(&r); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
		if endReasons[c.want] == 0 {
			t.Errorf("%s has no flowEndReason", c.want)
		}
	}
}

// Names outlive Service and endpoint: the end of a connection comes after theirs.
func TestNamesOutliveTheirObjects(t *testing.T) {
	services := []string{"", "default/web"}
	at := netip.MustParseAddrPort("10.0.0.1:80")
	of := func(name, zone string) *discovery.Service {
		return &discovery.Service{Name: discovery.ServiceName{Namespace: "default", Name: name}, Ports: []discovery.Port{{Endpoints: []topology.Endpoint{{AddrPort: at, Zone: zone}}}}}
	}
	served := []*discovery.Service{of("web", "a"), of("other", "b"), of("long", strings.Repeat("z", maxZone+1))}
	n := newNames(func() []string { return services }, func() []*discovery.Service { return served })
	now := time.Now()
	n.ask()
	services, served = []string{"default/api", ""}, nil
	n.ask()
	if n.service(0) != "default/api" || n.service(1) != "default/web" || n.service(2) != "" || n.zone("default/web", at.Addr()) != "a" || n.zone("default/long", at.Addr()) != "" {
		t.Errorf("%+v", n.byNumber)
	}
	unknown := []conntrack.Record{{ServiceID: 7}}
	for _, c := range []struct {
		age  time.Duration
		want int
	}{{namesEvery, 1}, {namesEvery + namesAtMost/2, 0}, {namesEvery + namesAtMost, 1}} {
		n.refresh(now.Add(c.age), unknown)
		if len(n.asks) != c.want {
			t.Errorf("after %v: %d questions, want %d", c.age, len(n.asks), c.want)
		}
		for range c.want {
			<-n.asks
		}
	}
}

// A change of Services holds those that are served: records are read meanwhile, without names.
func TestRecordsAreReadWhileServicesChange(t *testing.T) {
	change := make(chan struct{})
	n := newNames(func() []string { <-change; return nil }, func() []*discovery.Service { return nil })
	done := make(chan struct{})
	go func() { n.follow(); close(done) }()
	now := time.Now()
	for i := range 4 { // the first is asked, one waits
		n.refresh(now.Add(time.Duration(i)*namesAtMost), []conntrack.Record{{ServiceID: 1}})
	}
	close(change)
	close(n.asks)
	<-done
}

// The time of a tick does not depend on when it is asked for, unless the clock is set.
func TestTimesOfTicks(t *testing.T) {
	var c wallClock
	now := time.Date(2026, 5, 1, 10, 0, 0, 1e6, time.UTC)
	c.follow(now, 1000)
	first := c.at(1000)
	c.follow(now.Add(10*time.Second+60*time.Millisecond), 1000+160) // late in the tick
	if got := c.at(1000); got != first || c.at(1016).Sub(first) != time.Second {
		t.Errorf("%v, then %v", first, got)
	}
	c.follow(now.Add(time.Hour), 1000+160)
	if d := c.at(1160).Sub(now.Add(time.Hour)); d < -tickTime || d > tickTime {
		t.Errorf("%v off after the clock was set", d)
	}
}

// hanging is a place that does not answer until it ends.
type hanging struct{ end chan struct{} }

func (h hanging) write([]Event) (int, error) { <-h.end; return 0, nil }
func (hanging) close()                       {}

// A stop does not wait for a place that takes no more, and neither do the other places.
func TestNobodyWaitsForAPlace(t *testing.T) {
	table, err := conntrack.Open(conntrack.Config{MaxFlows: 64, Workers: 1, RecordsPerSecond: 1})
	if err != nil {
		t.Fatal(err)
	}
	h := hanging{make(chan struct{})}
	log := slog.New(slog.DiscardHandler)
	hangs, works := newTarget("hangs", h, log), newTarget("works", outcome{}, log)
	l := &Log{cfg: Config{Table: table, Log: log}, names: newNames(nil, nil), targets: []*target{hangs, works}}
	for range queueReads + 2 { // the first may be in the place
		hangs.give(make([]Event, 1))
	}
	works.give(make([]Event, 1))
	if f := hangs.fault.Load(); f == nil || f.text != errSlow.Error() || hangs.lost.Load() < 1 {
		t.Errorf("%+v, %d lost", f, hangs.lost.Load())
	}
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if err := l.Run(ctx); err != nil {
		t.Error(err)
	}
	if <-works.done; works.given.Load() != 1 || works.lost.Load() != 0 {
		t.Errorf("%d given, %d lost", works.given.Load(), works.lost.Load())
	}
	close(h.end)
	<-hangs.done
}

// A fault lasts, since hosts do not refuse each message, and ends with time after a write.
func TestAFaultLasts(t *testing.T) {
	g := newTarget("", outcome{}, slog.New(slog.DiscardHandler))
	g.count(1, syscall.ECONNREFUSED)
	late := time.Now().Add(2 * faultTime)
	if g.look(late); g.fault.Load() == nil {
		t.Error("a fault is over without a write")
	}
	go g.follow()
	g.give(make([]Event, 1))
	close(g.queue)
	<-g.done
	if g.look(time.Now().Add(faultTime / 2)); g.fault.Load() == nil {
		t.Error("a fault is over at once")
	}
	g.queued.Store(1) // as always on a busy node
	if g.look(late); g.fault.Load() != nil {
		t.Error("a fault stays")
	}
}

// Many reads of few records wait for a slow place, and few of many.
func TestTheQueueIsBoundByRecords(t *testing.T) {
	g := newTarget("", outcome{}, slog.New(slog.DiscardHandler))
	for range queueEvents/readMost + 1 {
		g.give(make([]Event, readMost))
	}
	if g.lost.Load() != readMost || g.queued.Load() != queueEvents {
		t.Errorf("%d lost, %d wait", g.lost.Load(), g.queued.Load())
	}
}

type outcome struct{ err error }

func (o outcome) write([]Event) (int, error) { return 0, o.err }
func (outcome) close()                       {}
