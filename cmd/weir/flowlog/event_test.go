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
	n := names{services: func() []string { return services }, served: func() []*discovery.Service { return served }}
	now := time.Now()
	n.refresh(now, false)
	services, served = []string{"default/api", ""}, nil
	if n.refresh(now.Add(namesAtMost/2), true); n.knows(0, at.Addr()) {
		t.Error("names are asked for at any rate")
	}
	n.refresh(now.Add(namesAtMost), true)
	if n.service(0) != "default/api" || n.service(1) != "default/web" || n.service(2) != "" || n.zone("default/web", at.Addr()) != "a" || n.zone("default/long", at.Addr()) != "" {
		t.Errorf("%+v", n)
	}
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

// hanging is a file system that does not answer.
type hanging struct{ end chan struct{} }

func (hanging) write([]Event) (int, error) { return 0, nil }
func (h hanging) close()                   { <-h.end }

// A stop does not wait for a place that takes no more.
func TestAStopWaitsForNoPlace(t *testing.T) {
	table, err := conntrack.Open(conntrack.Config{MaxFlows: 64, Workers: 1, RecordsPerSecond: 1})
	if err != nil {
		t.Fatal(err)
	}
	h := hanging{make(chan struct{})}
	defer close(h.end)
	l := &Log{cfg: Config{Table: table, Log: slog.New(slog.DiscardHandler)}, targets: []*target{{sink: h}}, records: make([]conntrack.Record, readMost)}
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if err := l.Run(ctx); err != nil || !l.left {
		t.Errorf("%v, left: %v", err, l.left)
	}
}

// A fault lasts: hosts do not refuse each message.
func TestAFaultLasts(t *testing.T) {
	g := &target{log: slog.New(slog.DiscardHandler)}
	for _, err := range []error{syscall.ECONNREFUSED, nil} {
		g.sink = outcome{err}
		if g.write(make([]Event, 1)); g.fault.Load() == nil {
			t.Errorf("no fault after %v", err)
		}
	}
	g.failed = g.failed.Add(-2 * faultTime)
	if g.write(make([]Event, 1)); g.fault.Load() != nil {
		t.Errorf("a fault stays: %s", *g.fault.Load())
	}
}

type outcome struct{ err error }

func (o outcome) write([]Event) (int, error) { return 0, o.err }
func (outcome) close()                       {}
