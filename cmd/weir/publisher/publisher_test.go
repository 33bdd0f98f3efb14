package publisher

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weirlb/weir/cmd/weir/config"
	"github.com/weirlb/weir/cmd/weir/drains"
	"github.com/weirlb/weir/cmd/weir/endpointhealth"
	"github.com/weirlb/weir/cmd/weir/event"
	"github.com/weirlb/weir/cmd/weir/problem"
	"github.com/weirlb/weir/cmd/weir/translate"
	"github.com/weirlb/weir/discovery"
	"github.com/weirlb/weir/lb/ports"
	"github.com/weirlb/weir/lb/table"
	"github.com/weirlb/weir/perf/netlab/patience"
)

const a1, a2 = "10.1.1.1:80", "10.1.1.2:80"

func expect(t *testing.T, what string, got, want []string) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

func name(text string) discovery.ServiceName {
	return discovery.ServiceName{Namespace: "ns", Name: text}
}

// Nothing is served before both the source has told of all Services and the packet path is ready, in
// either order: then all is published at once, without those that are gone again.
func TestTheFirstPublicationIsWhole(t *testing.T) {
	for _, begin := range []int{0, 1, 2} {
		t.Run(fmt.Sprintf("ready after %d updates", begin), func(t *testing.T) {
			r := closed(t)
			updates := []*discovery.Update{
				{Put: []*discovery.Service{web("a", 1, a1), web("gone", 3, a1)}},
				{Put: []*discovery.Service{web("b", 2, a1)}, Deleted: []discovery.ServiceName{name("gone")}, Synced: true},
			}
			for i, up := range updates {
				if i == begin {
					r.open()
					r.Begin()
				}
				if r.Deliver(up); i == 0 && (r.HasPublished() || r.Serving()) {
					t.Errorf("half of the Services are served: %v", r.list)
				}
			}
			if begin == len(updates) {
				r.open()
				r.Begin()
			}
			if !r.HasPublished() || !r.Serving() || !slices.Equal(r.took, []int{2}) {
				t.Errorf("published %v, serving %v, traffic taken for %v", r.HasPublished(), r.Serving(), r.took)
			}
			if i := slices.Index(r.list, "apply ns/a ns/b"); i < 0 || strings.Count(strings.Join(r.list, "\n"), "apply") != 1 {
				t.Errorf("calls %q", r.list)
			}
			expect(t, "events", r.told(), nil) // that traffic is taken is all that is new
		})
	}
}

// Addresses are withdrawn before the packet path changes, and announced afterwards. A health check of
// an external load balancer succeeds only for a Service that is served.
func TestTheOrderOfAPublication(t *testing.T) {
	node := &discovery.Node{}
	node.Name = "edge-1"
	for _, c := range []struct {
		name string
		do   func(*rig)
		want []string
	}{
		{"an update", func(r *rig) {
			r.Deliver(&discovery.Update{Put: []*discovery.Service{web("b", 2, a1)}, Deleted: []discovery.ServiceName{name("a")}})
		}, []string{"health of endpoints", "withdraw ns/b -ns/a", "apply ns/b -ns/a", "announce ns/b", "checks"}},
		{"an update of the Node, before the Services that depend on it", func(r *rig) {
			r.Deliver(&discovery.Update{Node: node, Put: []*discovery.Service{web("b", 2, a1)}})
		}, []string{"addresses of checks", "guard of probes", "health of endpoints", "withdraw ns/b", "apply ns/b", "announce ns/b", "checks"}},
		{"another health", func(r *rig) {
			r.monitor.fails = netip.MustParseAddrPort(a1)
			r.HealthChanged([]endpointhealth.Change{{Service: name("a"), At: r.monitor.fails, Text: "fails"}})
		}, []string{"recount checks", "withdraw ns/a", "apply ns/a", "announce ns/a"}},
		{"a reload, whose addresses are announced once health checks have theirs", func(r *rig) {
			r.Reconfigure(func(cfg *config.Configuration) { r.note("change"); cfg.ClusterIPs = false }, func(string) { r.note("done") })
		}, []string{"change", "addresses of checks", "announcer reload", "withdraw ns/a", "apply ns/a", "announce ns/a", "guard of probes", "done"}},
		{"the end of frontends of withdrawn addresses", func(r *rig) {
			r.announce.ends = translate.Batch{Delete: []string{"ns/a"}}
			r.EndLingering(time.Now())
		}, []string{"apply -ns/a", "announce"}},
		{"no such end", func(r *rig) { r.EndLingering(time.Now()) }, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := serving(t, web("a", 1, a1, a2))
			c.do(r)
			expect(t, "calls", r.list, c.want)
		})
	}
}

// Before traffic is taken neither a change of health nor of the configuration, nor time, publishes. The
// first publication follows them.
func TestNothingIsPublishedBeforeTrafficIsTaken(t *testing.T) {
	r := closed(t)
	r.open()
	r.announce.ends = translate.Batch{Delete: []string{"ns/a"}}
	r.EndLingering(time.Now())
	r.monitor.fails = netip.MustParseAddrPort(a1)
	r.HealthChanged([]endpointhealth.Change{{Service: name("a"), At: r.monitor.fails}})
	r.Reconfigure(func(cfg *config.Configuration) { cfg.ClusterIPs = false }, func(string) {})
	for _, call := range r.list {
		if strings.HasPrefix(call, "apply") || strings.HasPrefix(call, "withdraw") || strings.HasPrefix(call, "announce ") {
			t.Errorf("before traffic is taken: %s", call)
		}
	}
	r.Begin()
	r.Deliver(&discovery.Update{Put: []*discovery.Service{web("a", 1, a1, a2)}, Synced: true})
	if got := r.endpoints("203.0.113.1:80"); got != a2 {
		t.Errorf("endpoints %s, want %s", got, a2)
	}
	if got := r.endpoints("10.96.0.1:80"); got != "no frontend" {
		t.Errorf("clusterIPs are off, endpoints %s", got)
	}
}

// Where an interface cannot be attached to, the process ends: nothing is said to be served, and
// nothing more is published.
func TestAFailedDeliveryLeavesNothingAnnounced(t *testing.T) {
	attach := fmt.Errorf("%w: interface eth0: no such device", ports.ErrAttach)
	first := closed(t)
	first.open()
	first.Begin()
	first.path.err = attach
	first.Deliver(&discovery.Update{Put: []*discovery.Service{web("a", 1, a1)}, Synced: true})
	if len(first.took) != 0 || first.HasPublished() {
		t.Errorf("taken %v, published %v", first.took, first.HasPublished())
	}
	later := serving(t, web("a", 1, a1))
	later.path.err = attach
	later.Deliver(&discovery.Update{Put: []*discovery.Service{web("b", 2, a1)}})
	for what, r := range map[string]*rig{"the first": first, "a later": later} {
		if !errors.Is(r.stopped, ports.ErrAttach) || r.Serving() {
			t.Errorf("%s: serving %v, stopped for %v", what, r.Serving(), r.stopped)
		}
		if slices.ContainsFunc(r.list, func(call string) bool { return strings.HasPrefix(call, "announce") }) {
			t.Errorf("%s: calls %q", what, r.list)
		}
		expect(t, what+": events", r.told(), nil)
		r.list, r.path.err = nil, nil
		r.Deliver(&discovery.Update{Put: []*discovery.Service{web("c", 3, a1)}})
		expect(t, what+": calls afterwards", r.list, []string{"health of endpoints", "checks"})
	}
}

// Problems of a Service last until it is published without them, or gone. A Service that stays as it
// was has no events of a change.
func TestProblemsEndWithTheNextPublication(t *testing.T) {
	r := serving(t, web("a", 1, a1))
	broken := web("a", 1, a2)
	broken.Warnings = []string{"an Endpoints object was cut short"}
	r.path.err = &table.ServiceError{Service: "ns/a", Kept: true, Err: errors.New("no number is free")}
	r.Deliver(&discovery.Update{Put: []*discovery.Service{broken}})
	if n := len(r.problems.Of("Service ns/a")); n != 2 {
		t.Errorf("%d problems: %+v", n, r.problems.Of("Service ns/a"))
	}
	if !slices.Contains(r.list, "announce ns/a") || !r.Serving() || r.stopped != nil {
		t.Errorf("calls %q, serving %v, stopped for %v", r.list, r.Serving(), r.stopped)
	}
	expect(t, "events of a Service that stays as it was", r.told(event.ServiceAdded, event.EndpointAdded, event.EndpointRemoved, event.TierChanged), nil)
	r.path.err = nil
	r.Deliver(&discovery.Update{Put: []*discovery.Service{web("a", 1, a2)}})
	if list := r.problems.Of("Service ns/a"); len(list) != 0 {
		t.Errorf("still there: %+v", list)
	}
	r.path.err = errors.New("no memory")
	r.Deliver(&discovery.Update{Put: []*discovery.Service{broken}})
	r.path.err = nil
	r.Deliver(&discovery.Update{Deleted: []discovery.ServiceName{name("a")}})
	if n := r.problems.Counts()[problem.Publication]; n != 0 || len(r.problems.Of("Service ns/a")) != 0 {
		t.Errorf("of a Service that is gone: %v", r.problems.Counts())
	}
}

// Events say in order which changes came after the first publication.
func TestEventsTellOfChanges(t *testing.T) {
	r := serving(t, web("a", 1, a1))
	r.Deliver(&discovery.Update{Put: []*discovery.Service{web("b", 2, a1)}})
	r.Deliver(&discovery.Update{Put: []*discovery.Service{web("b", 2, a1, a2)}})
	r.monitor.fails = netip.MustParseAddrPort(a1)
	r.HealthChanged([]endpointhealth.Change{{Service: name("b"), At: r.monitor.fails, Text: "fails the health check: refused"}})
	r.source.list = []*discovery.Service{web("a", 1, a1), web("b", 2)}
	r.Deliver(&discovery.Update{Put: []*discovery.Service{web("b", 2)}})
	r.Deliver(&discovery.Update{Deleted: []discovery.ServiceName{name("b")}})
	got := r.told()
	for i, want := range []string{
		"ns/b: the Service is served", "ns/b: endpoint 10.1.1.2 added", "ns/b: endpoint 10.1.1.1:80 fails the health check",
		"ns/b: endpoint 10.1.1", "ns/b: endpoint 10.1.1", "ns/b: tier none, was all", "ns/b: the Service is no longer served",
	} {
		if i >= len(got) || !strings.HasPrefix(got[i], want) {
			t.Fatalf("event %d is not %q:\n%s", i, want, strings.Join(got, "\n"))
		}
	}
	if n := r.Removed(); n != 1 {
		t.Errorf("%d Services are withdrawn", n)
	}
	if list := r.Tiers("ns/a", 80, 6); len(list) == 0 || list[0].Endpoints != 1 {
		t.Errorf("tiers %+v", list)
	}
}

// A drained endpoint gets no new connections, on health checks neither, until the drain ends: by the
// operator, or with the endpoint. The next process goes on with it.
func TestDrainsOfEndpoints(t *testing.T) {
	r := serving(t, web("a", 1, a1, a2))
	if err := r.DrainEndpoints([]string{"10.9.9.9"}, false); err == nil || r.list != nil {
		t.Errorf("an unknown endpoint: %v, calls %q", err, r.list)
	}
	if err := r.DrainEndpoints([]string{"10.1.1.1"}, false); err != nil {
		t.Fatal(err)
	}
	if got := r.endpoints("203.0.113.1:80"); got != a2 {
		t.Errorf("endpoints %s, want %s", got, a2)
	}
	if svc := r.checks.readiness.Of(web("a", 1, a1)); svc.Ports[0].Endpoints[0].Ready {
		t.Error("health checks count a drained endpoint")
	}
	if list := r.NodeProblems(); len(list) != 1 || list[0].Kind != problem.Drained {
		t.Errorf("problems %+v", list)
	}
	next := closed(t)
	next.drains = drains.New(r.cfg, next.log)
	next.open()
	next.Begin()
	next.Deliver(&discovery.Update{Put: []*discovery.Service{web("a", 1, a1, a2)}, Synced: true})
	if got := next.endpoints("203.0.113.1:80"); got != a2 {
		t.Errorf("in the next process: endpoints %s, want %s", got, a2)
	}
	r.Deliver(&discovery.Update{Put: []*discovery.Service{web("a", 1, a2)}})
	if n := len(r.Drains(0).Endpoints); n != 0 {
		t.Errorf("%d drained endpoints, which no Service has", n)
	}
}

// Frontends of node ports, and the addresses of health checks, follow those of the host.
func TestNodePortsFollowTheAddresses(t *testing.T) {
	r := serving(t, web("a", 1, a1))
	if got := r.endpoints("192.0.2.1:30001"); got != a1 {
		t.Errorf("endpoints %s, want %s", got, a1)
	}
	ctx, cancel := context.WithCancel(t.Context())
	changed, done := make(chan struct{}), make(chan error)
	go func() { done <- r.FollowAddresses(ctx, changed) }()
	set := func(addrs ...string) {
		r.mu.Lock() // a watcher has its own
		*r.host = nil
		for _, a := range addrs {
			*r.host = append(*r.host, netip.MustParseAddr(a))
		}
		r.mu.Unlock()
		changed <- struct{}{}
	}
	set("192.0.2.7", "198.51.100.1")
	eventually(t, "the new address", func() bool { return r.endpoints("192.0.2.7:30001") == a1 })
	if got := r.endpoints("192.0.2.1:30001"); got != "no frontend" {
		t.Errorf("the old address has endpoints %s", got)
	}
	set("198.51.100.1")
	eventually(t, "a problem without an address", func() bool {
		list := r.NodeProblems()
		return len(list) == 1 && list[0].Kind == problem.NoNodeAddress
	})
	cancel()
	if err := <-done; err != nil || len(r.checks.addresses) != 0 || r.checks.addresses == nil {
		t.Errorf("health checks have the addresses %v, %v", r.checks.addresses, err)
	}
}

func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience.For(10 * time.Second)); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not in time", what)
		}
	}
}

// Objects that the announcer refuses are told, and nothing else of a reload is lost for them. No
// publication comes between a reload and what is told of it.
func TestAReloadIsOneWithItsEnd(t *testing.T) {
	r := serving(t, web("a", 1, a1))
	if got := r.endpoints("10.96.0.1:80"); got != a1 {
		t.Fatalf("endpoints %s, want %s", got, a1)
	}
	r.announce.refused = "peer 1: no such Secret"
	var tasks sync.WaitGroup
	r.Reconfigure(func(cfg *config.Configuration) {
		cfg.ClusterIPs = false
		tasks.Go(func() { r.Deliver(&discovery.Update{Put: []*discovery.Service{web("b", 2, a1)}}) })
	}, func(refused string) { r.note("done: %s", refused) })
	tasks.Wait()
	done := slices.Index(r.list, "done: peer 1: no such Secret")
	if other := slices.Index(r.list, "apply ns/b"); done < 0 || other < done {
		t.Errorf("calls %q", r.list)
	}
	if cfg := r.Configuration(); cfg.ClusterIPs || r.endpoints("10.96.0.1:80") != "no frontend" {
		t.Errorf("clusterIPs %v, endpoints %s", cfg.ClusterIPs, r.endpoints("10.96.0.1:80"))
	}
}

// The tables have the last of all changes, whoever makes them at the same time.
func TestChangesAtTheSameTime(t *testing.T) {
	r := serving(t, web("a", 1, a1, a2))
	const rounds = 50
	var tasks sync.WaitGroup
	for _, change := range []func(int){
		func(i int) { r.Deliver(&discovery.Update{Put: []*discovery.Service{web("b", byte(10+i), a1, a2)}}) },
		func(int) {
			r.Reconfigure(func(c *config.Configuration) { c.ClusterIPs = !c.ClusterIPs }, func(string) {})
		},
		func(i int) { _ = r.DrainEndpoints([]string{"10.1.1.1"}, i%2 == 1) },
		func(int) {
			r.HealthChanged([]endpointhealth.Change{{Service: name("b"), At: netip.MustParseAddrPort(a1)}})
		},
		func(int) {
			r.EndLingering(time.Now())
			_ = r.NodeProblems()
			_ = r.Configuration()
			_, _ = r.NodePorts()
		},
	} {
		tasks.Go(func() {
			for i := range rounds {
				change(i)
			}
		})
	}
	tasks.Wait()
	last := fmt.Sprintf("203.0.113.%d:80", 10+rounds-1)
	if got := r.endpoints(last); got != a1+" "+a2 {
		t.Errorf("%s has endpoints %s", last, got)
	}
	if n := r.path.tables.Load().Services(); n != 2 {
		t.Errorf("%d Services", n)
	}
}
