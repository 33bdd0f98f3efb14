package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/perf/netlab/workload"
)

// ask runs a command of the operator against the fixture's Weir, and returns the output.
func (f *fixture) ask(t *testing.T, args ...string) string {
	t.Helper()
	cmd := f.command(append(args, "--admin-socket", f.path("weir.sock"))...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("weir %v: %v\n%s", args, err, &stderr)
	}
	return string(out)
}

// explains waits until weir explain shows a line of a Service that matches.
func (f *fixture) explains(t *testing.T, service, line string) {
	t.Helper()
	want := regexp.MustCompile(line)
	must(t, f.poll(func(context.Context) error { // the status is 1 with problems
		if out, _ := f.command("explain", "--service", service, "--admin-socket", f.path("weir.sock")).CombinedOutput(); !want.Match(out) {
			return fmt.Errorf("no line %s in\n%s", line, out)
		}
		return nil
	}))
}

// askJSON is ask with -o json.
func askJSON[T any](t *testing.T, f *fixture, args ...string) *T {
	t.Helper()
	out, v := f.ask(t, append(args, "-o", "json")...), new(T)
	if err := json.Unmarshal([]byte(out), v); err != nil {
		t.Fatalf("weir %v: %v\n%s", args, err, out)
	}
	return v
}

// echo opens a connection to a Service, and exchanges a line by it.
func (f *fixture) echo(t *testing.T, s service) net.Conn {
	t.Helper()
	c, err := f.Client.DialContext(inTime(t, within), "tcp", s.at(echoPort, false).String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if err := workload.PingPong(c, "hello", within); err != nil {
		t.Fatal(err)
	}
	return c
}

// The operator sees Services, endpoints and connections with traffic, counts connections,
// pages through them, and kills some.
func TestWireOperatorSeesServicesAndConnections(t *testing.T) {
	f := ownFixture(t, options{services: []service{toAttached, toNothing}})
	const conns = 5
	var list []net.Conn
	for range conns {
		list = append(list, f.echo(t, toAttached))
	}
	name := "test/" + toAttached.name
	if _, err := f.Client.DialContext(inTime(t, within), "tcp", toNothing.at(echoPort, false).String()); err == nil {
		t.Error("a Service without endpoints has accepted a connection")
	}

	t.Run("services", func(t *testing.T) { f.checkServices(t, name, conns) })
	t.Run("endpoints", func(t *testing.T) {
		l := askJSON[api.EndpointList](t, f, "endpoints", name)
		var open uint32
		for _, e := range l.Endpoints {
			if !e.Cluster || e.State != "ready" || e.Reason == "" {
				t.Errorf("%+v", e)
			}
			open += e.Open
		}
		if open != conns {
			t.Errorf("%d open connections, want %d", open, conns)
		}
		if out := f.ask(t, "endpoints"); !strings.Contains(out, "CONNECTIONS") || !strings.Contains(out, name) {
			t.Errorf("table:\n%s", out)
		}
	})
	t.Run("connections", func(t *testing.T) { f.checkConnections(t, name, conns) })
	t.Run("misspelt", func(t *testing.T) {
		for _, args := range [][]string{
			{"connections", "--service", "test/wbe"}, {"connections", "kill", "--service", "test/wbe"},
			{"connections", "--count-by", "client", "--service", "test/wbe"}, {"connections", "kill", "--state", "estblished"},
		} {
			out, err := f.command(append(args, "--admin-socket", f.path("weir.sock"))...).CombinedOutput()
			if err == nil || !strings.Contains(string(out), "service test/wbe: not found") && !strings.Contains(string(out), `no state has "estblished"`) {
				t.Errorf("weir %v: %v, %s", args, err, out)
			}
		}
	})
	t.Run("kill", func(t *testing.T) {
		client := list[0].LocalAddr().String()
		if out := f.ask(t, "connections", "kill", "--client", client); out != "removed: 1\n" {
			t.Errorf("kill: %q", out)
		}
		if l := askJSON[api.ConnectionList](t, f, "connections", "--client", client); len(l.Connections) != 0 {
			t.Errorf("still there: %+v", l.Connections)
		}
		if err := workload.PingPong(list[1], "another", within); err != nil {
			t.Errorf("another connection: %v", err)
		}
	})
}

func (f *fixture) checkServices(t *testing.T, name string, conns uint64) {
	var s api.ServiceState
	if err := f.poll(func(context.Context) error { // workers publish between batches
		l := askJSON[api.ServiceList](t, f, "services", name)
		if s = l.Services[0]; len(l.Services) != 1 || s.NewConnections != conns || s.Open != uint32(conns) {
			return fmt.Errorf("%+v", s)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
	if s.Handshakes.Count != conns || s.Handshakes.SumSeconds <= 0 || s.FailedHandshakes != 0 || len(s.Drops) != 0 {
		t.Errorf("%d handshakes measured, %v s, %d failed, drops %v", s.Handshakes.Count, s.Handshakes.SumSeconds, s.FailedHandshakes, s.Drops)
	}
	if s.Packets.FromClients == 0 || s.Bytes.FromEndpoints == 0 {
		t.Errorf("packets %+v, bytes %+v", s.Packets, s.Bytes)
	}
	for _, p := range s.Ports {
		if len(p.Tiers) != 2 || p.Tiers[0].Tier != "all" || p.Tiers[0].Endpoints != 1 || p.Tiers[0].Since.IsZero() {
			t.Errorf("port %s: %+v", p.Name, p.Tiers)
		}
	}
	nothing := askJSON[api.ServiceList](t, f, "services", "test/"+toNothing.name).Services[0]
	if nothing.Drops["no-endpoint"] == 0 || nothing.NewConnections != 0 {
		t.Errorf("a Service without endpoints: %+v", nothing)
	}
	if out := f.ask(t, "services"); !strings.Contains(out, "TIER") || !strings.Contains(out, "no-endpoint") {
		t.Errorf("table:\n%s", out)
	}
	if out := f.ask(t, "services", "--rate", "100ms"); !strings.Contains(out, "NEW/S") {
		t.Errorf("rates:\n%s", out)
	}
}

func (f *fixture) checkConnections(t *testing.T, name string, conns int) {
	l := askJSON[api.ConnectionList](t, f, "connections", "--service", name, "--state", "established", "--protocol", "tcp", "--max-age", "1h")
	if len(l.Connections) != conns || l.Next != 0 {
		t.Fatalf("%d connections, next %d", len(l.Connections), l.Next)
	}
	for _, none := range [][]string{{"--min-age", "1h"}, {"--min-idle", "1h"}, {"--protocol", "udp"}, {"--service", "test/" + toNothing.name}, {"--client", "203.0.113.0/24"}, {"--state", "close-wait"}} {
		if l := askJSON[api.ConnectionList](t, f, append([]string{"connections"}, none...)...); len(l.Connections) != 0 {
			t.Errorf("%v: %+v", none, l.Connections)
		}
	}
	seen, after := map[string]bool{}, "0"
	for range 2 * conns {
		page := askJSON[api.ConnectionList](t, f, "connections", "--service", name, "--limit", "2", "--after", after)
		for _, c := range page.Connections {
			seen[c.Client.String()] = true
		}
		if page.Next == 0 {
			break
		}
		after = fmt.Sprint(page.Next)
	}
	if len(seen) != conns {
		t.Errorf("pages have %d connections, want %d", len(seen), conns)
	}
	n := askJSON[api.ConnectionCount](t, f, "connections", "--count-by", "service")
	if len(n.Groups) != 1 || n.Groups[0] != (api.ConnectionGroup{Key: name, Count: uint64(conns)}) || n.Error != 0 {
		t.Errorf("count: %+v", n)
	}
	for _, by := range api.CountKeys {
		if out := f.ask(t, "connections", "--count-by", by); !strings.Contains(out, "in all") {
			t.Errorf("by %s:\n%s", by, out)
		}
	}
	if out := f.ask(t, "connections", "--all"); strings.Count(out, "established") != conns {
		t.Errorf("table:\n%s", out)
	}
}

// The level of the log changes, and profiles are taken, without a restart.
func TestWireOperatorLooksCloser(t *testing.T) {
	f := ownFixture(t, options{services: []service{toAttached}})
	f.echo(t, toAttached)
	if out := f.ask(t, "log-level"); out != "info\n" {
		t.Errorf("level %q", out)
	}
	if out := f.ask(t, "log-level", "debug"); out != "debug\n" {
		t.Errorf("changed to %q", out)
	}
	if l := askJSON[api.LogLevel](t, f, "log-level"); l.Level != "debug" {
		t.Errorf("level %+v", l)
	}
	for _, kind := range api.Profiles {
		file := filepath.Join(t.TempDir(), "p")
		f.ask(t, "profile", kind, "--duration", "1s", "-w", file)
		data, err := os.ReadFile(file)
		if err != nil || !bytes.HasPrefix(data, []byte{0x1f, 0x8b}) { // gzip, as go tool pprof reads it
			t.Errorf("%s: %d bytes, %v", kind, len(data), err)
		}
	}
}
