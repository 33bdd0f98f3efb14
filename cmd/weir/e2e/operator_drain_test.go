package e2e

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"

	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/cmd/weir/problem"
	"github.com/weirlb/weir/perf/netlab/workload"
)

// endpointOf is the endpoint of a connection.
func (f *fixture) endpointOf(t *testing.T, c net.Conn) netip.AddrPort {
	t.Helper()
	l, err := f.admin.Flows(context.Background(), 10, &api.FlowFilter{Client: c.LocalAddr().String()})
	must(t, err)
	if len(l.Flows) != 1 {
		t.Fatalf("%d connections from %s", len(l.Flows), c.LocalAddr())
	}
	return l.Flows[0].Endpoint
}

// drainProblems are the problems of drains in the status.
func (f *fixture) drainProblems(t *testing.T) (out []string) {
	t.Helper()
	s, err := f.admin.Status(context.Background())
	must(t, err)
	for _, p := range s.Problems {
		if p.Kind == problem.Drained {
			out = append(out, p.String())
		}
	}
	return out
}

// drains runs weir drain, and returns what it said.
func (f *fixture) drains(args ...string) (string, error) {
	out, err := f.command(append([]string{"drain", "--admin-socket", f.path("weir.sock")}, args...)...).CombinedOutput()
	return string(out), err
}

// An endpoint that the operator drains keeps its connections and gets no new ones, until that
// is undone.
func TestWireAnOperatorDrainsAnEndpoint(t *testing.T) {
	two := service{name: "two", index: 31, endpoints: []endpoint{attached, routed}}
	f := ownFixture(t, options{services: []service{two}})
	before := f.dialed(t, two.at(echoPort, false))
	drained := f.endpointOf(t, before)
	if out, err := f.drains("endpoint", "192.0.2.99:1"); err == nil || !strings.Contains(out, "192.0.2.99:1") {
		t.Errorf("an endpoint of no Service: %v, %s", err, out)
	}
	if out, err := f.drains("endpoint", drained.String()); err != nil || !strings.Contains(out, drained.String()) {
		t.Fatalf("%v: %s", err, out)
	}
	if list := f.drainProblems(t); len(list) != 1 || !strings.Contains(list[0], drained.String()) {
		t.Errorf("problems %q", list)
	}
	for range 30 {
		c := f.dialed(t, two.at(echoPort, false))
		if got := f.endpointOf(t, c); got == drained {
			t.Fatalf("a new connection to drained endpoint %s", got)
		}
		c.Close()
	}
	must(t, workload.PingPong(before, "while it is drained", within))
	l, err := f.admin.Endpoints(context.Background(), "test/two")
	must(t, err)
	marked := 0
	for _, e := range l.Endpoints {
		if e.Drained {
			marked++
		}
		if e.Drained && (e.Address != drained.String() || e.Cluster) {
			t.Errorf("shown as drained: %+v", e)
		}
	}
	if marked != 2 { // of TCP and of UDP
		t.Errorf("%d endpoints are shown as drained: %+v", marked, l.Endpoints)
	}
	f.explains(t, "test/two", drained.String()+` .*drained by weir drain for \S+; terminating and serving: not used`)
	said, err := f.admin.Trace(context.Background(), &api.TraceQuery{Protocol: "TCP", TTL: 64,
		Source: netip.AddrPortFrom(before.LocalAddr().(*net.TCPAddr).AddrPort().Addr(), 9), Destination: two.at(echoPort, false)})
	if err != nil || said.Choice == nil || len(said.Choice.Candidates) != 1 {
		t.Errorf("traced %+v, %v", said, err)
	}

	if out, err := f.drains("endpoint", drained.String(), "--undo"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	must(t, f.poll(func(context.Context) error {
		c := f.dialed(t, two.at(echoPort, false))
		defer c.Close()
		if got := f.endpointOf(t, c); got != drained {
			return fmt.Errorf("a new connection to %s", got)
		}
		return nil
	}))
	must(t, workload.PingPong(before, "after the drain", within))
}

// A node that the operator drains fails the health checks and serves on, until that is undone.
// The command waits for connections as long as it is told to.
func TestWireAnOperatorDrainsTheNode(t *testing.T) {
	f := ownFixture(t, options{services: []service{toLocalPod}})
	health := toLocalPod.healthPort()
	f.untilStatus(t, 9465, "/healthz", 200)
	f.untilStatus(t, health, "/", 200)
	c := f.dialed(t, toLocalPod.at(echoPort, false))
	if out, err := f.drains("self", "--wait", "--timeout", "1s"); err == nil || !strings.Contains(out, "connections are left after 1s") {
		t.Errorf("with a connection: %v, %s", err, out)
	}
	f.untilStatus(t, 9465, "/healthz", 503)
	f.untilStatus(t, 9465, "/readyz", 503)
	f.untilStatus(t, 9465, "/livez", 200)
	f.untilStatus(t, health, "/", 503)
	if d, err := f.drainStatus(); err != nil || !d.Operator || !d.Accepting {
		t.Errorf("drain %+v, %v", d, err)
	}
	if list := f.drainProblems(t); len(list) != 1 || !strings.HasPrefix(list[0], "Node ") {
		t.Errorf("problems %q", list)
	}
	must(t, workload.PingPong(c, "while the node is drained", within))
	must(t, workload.PingPong(f.dialed(t, toLocalPod.at(echoPort, true)), "new", within))
	if out, err := f.drains(); err != nil || !strings.Contains(out, "health checks fail") {
		t.Errorf("weir drain: %v, %s", err, out)
	}

	_, err := f.admin.KillConnections(context.Background(), &api.FlowFilter{Service: "test/" + toLocalPod.name})
	must(t, err)
	if out, err := f.drains("self", "--wait", "--timeout", "30s"); err != nil {
		t.Errorf("without a connection: %v, %s", err, out)
	}
	if out, err := f.drains("self", "--undo"); err != nil {
		t.Errorf("%v: %s", err, out)
	}
	f.untilStatus(t, 9465, "/healthz", 200)
	f.untilStatus(t, health, "/", 200)
	if _, err := f.drainStatus(); err == nil {
		t.Error("it still drains")
	}
	if list := f.drainProblems(t); len(list) != 0 {
		t.Errorf("problems after the drain: %q", list)
	}
	must(t, workload.PingPong(f.dialed(t, toLocalPod.at(echoPort, false)), "after the drain", within))
}

// While the only endpoint on the node is drained, the health check of the Service fails as if
// it were terminating, and connections that come are still served.
func TestWireADrainedEndpointFailsTheHealthCheck(t *testing.T) {
	f := ownFixture(t, options{services: []service{toLocalPod}})
	health := toLocalPod.healthPort()
	f.untilStatus(t, health, "/", 200)
	local := f.endpointOf(t, f.dialed(t, toLocalPod.at(echoPort, false))).Addr().String()
	if out, err := f.drains("endpoint", local); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	f.untilStatus(t, health, "/", 503)
	f.untilStatus(t, 9465, "/healthz", 200)
	must(t, workload.PingPong(f.dialed(t, toLocalPod.at(echoPort, false)), "while it is drained", within))
	if out, err := f.drains("endpoint", local, "--undo"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	f.untilStatus(t, health, "/", 200)
}

// Drains outlive the process, however it is replaced, until the operator ends them or Weir is
// stopped for good.
func TestWireOperatorDrainsOutliveTheProcess(t *testing.T) {
	t.Parallel()
	two := service{name: "two", index: 31, endpoints: []endpoint{attached, routed}}
	f := ownFixture(t, options{services: []service{two}, extra: "death: {holdSeconds: 600}\n"})
	drained := f.endpointOf(t, f.dialed(t, two.at(echoPort, false)))
	for _, args := range [][]string{{"self"}, {"endpoint", drained.String()}} {
		if out, err := f.drains(args...); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	for _, replaced := range []struct {
		how string
		by  func() error
	}{
		{"restart", func() error { return errors.Join(endedBy(t, f, syscall.SIGUSR2), f.start()) }},
		{"crash", func() error { return errors.Join(f.weir.Kill(), f.start()) }},
	} {
		must(t, replaced.by())
		if code, _, err := f.httpStatus(9465, "/healthz"); err != nil || code != 503 {
			t.Errorf("%s: /healthz answers %d, %v", replaced.how, code, err)
		}
		if list := f.drainProblems(t); len(list) != 2 || !strings.Contains(strings.Join(list, " "), drained.String()) {
			t.Errorf("%s: problems %q", replaced.how, list)
		}
		for range 10 {
			if got := f.endpointOf(t, f.dialed(t, two.at(echoPort, false))); got == drained {
				t.Fatalf("%s: a new connection to drained endpoint %s", replaced.how, got)
			}
		}
	}
	if out, err := f.drains("self", "--undo"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	must(t, errors.Join(endedBy(t, f, syscall.SIGUSR2), f.start()))
	if list := f.drainProblems(t); len(list) != 1 || !strings.Contains(list[0], drained.String()) {
		t.Errorf("problems after an undo and a restart: %q", list)
	}
	must(t, endedBy(t, f, syscall.SIGTERM))
	must(t, f.start())
	if list := f.drainProblems(t); len(list) != 0 {
		t.Errorf("problems after a stop: %q", list)
	}
}
