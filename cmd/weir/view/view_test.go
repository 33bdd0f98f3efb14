package view

import (
	"encoding/json"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/cmd/weir/problem"
	"github.com/weirlb/weir/lb/counter"
	"github.com/weirlb/weir/perf/golden"
)

// example reads an answer of package api.
func example[T any](t *testing.T, name string) *T {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("..", "api", "testdata", name+".json"))
	if err != nil {
		t.Fatal(err)
	}
	v := new(T)
	if err := json.Unmarshal(data, v); err != nil {
		t.Fatal(err)
	}
	return v
}

func exampleStatus(t *testing.T) *api.Status { return example[api.Status](t, "status") }

func minute(n int) time.Time { return time.Date(2026, 11, 20, 10, n, 0, 0, time.UTC) }

func TestRenderGolden(t *testing.T) {
	defer func(was *time.Location) { time.Local = was }(time.Local)
	time.Local = time.UTC
	earlier := exampleStatus(t)
	earlier.UptimeSeconds -= 2
	earlier.Workers[0].Counters[counter.Busy] = 0.5e9
	earlier.Workers[0].Counters[counter.RxPackets], earlier.Workers[0].Counters[counter.TxPackets] = 0, 0
	for name, render := range map[string]func(*strings.Builder) error{
		"status": func(b *strings.Builder) error { return Status(b, exampleStatus(t), nil) },
		"watch":  func(b *strings.Builder) error { return Status(b, exampleStatus(t), earlier) },
		"away": func(b *strings.Builder) error {
			return Status(b, &api.Status{Version: "devel", Node: "n", Synced: true, Problems: []problem.Problem{
				{Kind: problem.APIServer, Severity: problem.Error, Object: "API server https://k", Field: "nodes", Reason: "refused", Since: minute(7)},
				{Kind: problem.APIServer, Severity: problem.Error, Object: "API server https://k", Field: "services", Reason: "refused", Since: minute(6)},
			}}, nil)
		},
		"empty":    func(b *strings.Builder) error { return Status(b, &api.Status{Version: "devel", Node: "n"}, nil) },
		"problems": func(b *strings.Builder) error { return Problems(b, exampleStatus(t)) },
		"flows":    func(b *strings.Builder) error { return Flows(b, example[api.FlowList](t, "flows")) },
		"services": func(b *strings.Builder) error { return Services(b, example[api.ServiceList](t, "services"), nil) },
		"rates": func(b *strings.Builder) error {
			l, prev := example[api.ServiceList](t, "services"), example[api.ServiceList](t, "services")
			prev.Time = prev.Time.Add(-10 * time.Second)
			prev.Services[0].NewConnections, prev.Services[0].Packets, prev.Services[0].Drops = 12000, api.Traffic{}, nil
			return Services(b, l, prev)
		},
		"endpoints": func(b *strings.Builder) error { return Endpoints(b, example[api.EndpointList](t, "endpoints")) },
		"events":    func(b *strings.Builder) error { return Events(b, example[api.EventList](t, "events")) },
		"event":     func(b *strings.Builder) error { return Event(b, &example[api.EventList](t, "events").Events[1]) },
		"count":     func(b *strings.Builder) error { return ConnectionCount(b, example[api.ConnectionCount](t, "count")) },
		"connections": func(b *strings.Builder) error {
			return NewConnections(b).Page(example[api.FlowList](t, "flows").Flows)
		},
		"frontends": func(b *strings.Builder) error { return Frontends(b, example[api.FrontendList](t, "frontends")) },
	} {
		t.Run(name, func(t *testing.T) {
			b := &strings.Builder{}
			if err := render(b); err != nil {
				t.Fatal(err)
			}
			golden.File(t, filepath.Join("testdata", name+".txt"), b.String())
		})
	}
}

func TestADrainIsShown(t *testing.T) {
	for want, d := range map[string]api.Drain{
		"draining: 3 connections left, 41 s to go, new ones are still taken": {Accepting: true, Connections: 3, SecondsLeft: 41.2},
		"drained by the operator: health checks fail":                        {Accepting: true, Operator: true, Connections: 3},
		"draining: 1 connection left, 7 s to go":                             {Connections: 1, SecondsLeft: 6.9},
	} {
		s := exampleStatus(t)
		s.Draining, s.Drain = true, &d
		var b strings.Builder
		if err := Status(&b, s, nil); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(b.String(), want) {
			t.Errorf("%q is not in\n%s", want, b.String())
		}
	}
}

// The state of BFD is beside that of the session, of routers that have BFD.
func TestBFDIsShownBesideTheSession(t *testing.T) {
	var b strings.Builder
	err := Announce(&b, &api.Status{Announce: &api.Announce{Speaker: "bgp", Peers: []api.AnnouncePeer{
		{Peer: "10.0.0.1", ASN: 64500, State: "established", Established: true, BFD: "up", Routes: 3},
		{Peer: "10.0.0.2", ASN: 64500, State: "established", Established: true, Routes: 3},
	}}})
	got := strings.Fields(strings.Split(b.String(), "ADDRESS")[0])
	want := strings.Fields("PEER ASN STATE FOR BFD ROUTES ENDS LAST END 10.0.0.1 64500 established - up 3 0 10.0.0.2 64500 established - - 3 0")
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%q, %v, want %q", got, err, want)
	}
}

// Without a router an address is shown once, with its owner: a standby announces nothing.
func TestAStandbyAnnouncesNothing(t *testing.T) {
	var b strings.Builder
	err := Announce(&b, &api.Status{Announce: &api.Announce{
		Speaker:   "off",
		Objects:   &api.AnnounceObjects{L2Advertisements: 1},
		L2:        []api.AnnounceLink{{Interface: "eth0", Carrier: true, Nodes: []string{"edge-2"}}},
		Addresses: []api.AnnouncedAddress{{Address: netip.MustParseAddr("192.0.2.1"), Announced: true, Services: []string{"test/web"}, L2: &api.AnnouncedL2{State: "standby", Owner: "edge-2", Since: time.Now(), Reason: "edge-2 has it"}}},
	}})
	for _, want := range []string{"0 BGPPeers, 0 BGPAdvertisements and 1 L2Advertisements are in use", "eth0 yes no edge-2 -", "announce.l2.keyFile", "192.0.2.1 standby 0s edge-2 - test/web edge-2 has it"} {
		if text := strings.Join(strings.Fields(b.String()), " "); err != nil || !strings.Contains(text, want) || strings.Contains(text, "ANNOUNCED") {
			t.Errorf("%q is not in %q, %v", want, text, err)
		}
	}
}

func TestAPacketShowsItsFlags(t *testing.T) {
	var b strings.Builder
	if err := Packet(&b, &api.Packet{Protocol: "TCP", Flags: "syn,ack", Interface: "eth0", Source: "a", Destination: "b", Verdict: "forward"}); err != nil || !strings.Contains(b.String(), " eth0 TCP syn,ack a > b ") {
		t.Errorf("%q, %v", b.String(), err)
	}
}

func TestHealthHasAgeAndLatency(t *testing.T) {
	now := time.Unix(1000, 0)
	since := now.Add(-5 * time.Minute)
	for want, h := range map[string]api.EndpointHealth{
		"passing 5m0s, 1.2ms": {State: api.HealthPassing, Since: &since, LatencySeconds: 0.00123},
		"failing 5m0s":        {State: api.HealthFailing, Since: &since, LatencySeconds: 0.00123},
		"unchecked":           {State: api.HealthUnchecked},
		"-":                   {},
	} {
		if got := Health(&h, now); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func TestMeanTimeHasTwoDigits(t *testing.T) {
	for seconds, want := range map[float64]string{0.0025805: "2.6ms", 0.000280: "280µs", 1.234: "1.2s", 0.0000004: "0s"} {
		if got := meanTime(&api.Histogram{Count: 1, SumSeconds: seconds}); got != want {
			t.Errorf("%v s: got %s, want %s", seconds, got, want)
		}
	}
}

// The reason of a hook is shown also where the kernel forwards no flows, which may be the reason.
func TestEachHookHasAReason(t *testing.T) {
	s := exampleStatus(t)
	for _, i := range []api.Interface{
		{Name: "eth0", Hook: "xdp", HookReason: "tcx: the kernel forwards no flows: off"},
		{Name: "eth0", Hook: "tcx", HookReason: "a veth keeps segmentation offload", Repeated: &api.Repeated{}},
	} {
		var b strings.Builder
		s.Interfaces = []api.Interface{i}
		if err := Status(&b, s, nil); err != nil {
			t.Fatal(err)
		}
		if want := "Hook " + i.Hook + " of eth0: " + i.HookReason + "\n"; !strings.Contains(b.String(), want) {
			t.Errorf("no %q in\n%s", want, &b)
		}
	}
}
