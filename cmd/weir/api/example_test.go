package api

import (
	"encoding/json"
	"net/netip"
	"path/filepath"
	"testing"
	"time"

	"github.com/weirlb/weir/cmd/weir/event"
	"github.com/weirlb/weir/cmd/weir/problem"
	"github.com/weirlb/weir/lb/counter"
	"github.com/weirlb/weir/perf/golden"
)

// The names of the fields are a contract: scripts read them. Package view renders
// the same files.
func TestAnswersGolden(t *testing.T) {
	for name, answer := range map[string]any{
		"status": exampleStatus(), "flows": exampleFlows(), "frontends": exampleFrontends(), "services": exampleServices(), "endpoints": exampleEndpoints(),
		"count": exampleCount(), "events": exampleEvents(),
	} {
		got, err := json.MarshalIndent(answer, "", "  ")
		if err != nil {
			t.Fatal(err)
		}
		golden.File(t, filepath.Join("testdata", name+".json"), string(got)+"\n")
	}
}

// exampleStatus has something of everything.
func exampleStatus() *Status {
	return &Status{
		Version: "v0.1.0", Node: "edge-1", PID: 4711,
		StartTime: time.Date(2026, 11, 20, 10, 0, 0, 0, time.UTC), UptimeSeconds: 3723.5,
		Start:    []Phase{{Name: "flow table", Seconds: 0.0412}, {Name: "routes", Seconds: 0.0004}, {Name: "sockets", Seconds: 0.0301}},
		Snapshot: 42, LastUpdated: time.Date(2026, 11, 20, 10, 58, 1, 0, time.UTC), Synced: true,
		Discovery: Discovery{
			Source: "manifests /etc/weir/manifests", Services: 5,
		},
		Services: 3, Frontends: 8, Endpoints: 12, FrontendsLimit: 65536, EndpointsLimit: 524288,
		Interfaces: []Interface{
			{Name: "eth0", IfIndex: 2, Mode: "native", Driver: "virtio_net", Queues: 4, BoundQueues: 2, TxChecksum: "metadata", Pinned: true, MTU: 1500,
				Hook: "tcx", HookReason: "virtio_net keeps segmentation offload", Repeated: &Repeated{Packets: 9000, Bytes: 13000000, Steered: 1000}, Lost: Lost{Pair: 5},
				Sockets: []Socket{{Queue: 0, Mode: "zerocopy", RxRingFull: 3}, {Queue: 1, Worker: 1, Mode: "native", Umem: 1, RxFillRingEmpty: 2, Rejected: 1}}},
			{Name: "weir0", IfIndex: 9, Mode: "native", Driver: "veth", Queues: 2, BoundQueues: 2, TxChecksum: "software", HostVeth: true, MTU: 1500, Hook: "xdp"},
		},
		Workers: []Worker{
			{ID: 0, CPU: 2, Counters: counter.Values{
				counter.RxPackets: 1000, counter.RxBytes: 1500000, counter.Batches: 40, counter.Sleeps: 3, counter.FreeFrames: 4096,
				counter.Busy: 1.5e9, counter.TxPackets: 990, counter.TxBytes: 1490000, counter.NewFlows: 10, counter.Handoff: 4,
			}, BusyShare: 0.25, Drops: map[string]uint64{"no-conntrack-entry": 10}},
			{ID: 1, CPU: -1, Counters: counter.Values{counter.RxPackets: 5, counter.RxBytes: 500}, Drops: map[string]uint64{}},
		},
		Flows: Flows{Current: 10, Max: 1048576, MemoryBytes: 402653184, Created: 100, Expired: 80, Evicted: 1, NoPort: 2, Full: 3, Adopted: 4,
			ByState:     map[string]uint64{"tcp-established": 7, "udp-stream": 3, "tcp-syn-sent": 0},
			DisplacedBy: map[string]uint64{"idle": 0, "silent": 5}, Displaced: 5},
		Drops:     map[string]uint64{"no-conntrack-entry": 10, "martian": 10, "truncated": 11, "ttl-exceeded": 0},
		FlowLog:   &FlowLog{Records: 9, Lost: 1, Skipped: 2, Targets: []FlowLogTarget{{Name: "ipfix 192.0.2.9:4739", Sent: 6, Lost: 3, Fault: "connection refused"}}},
		DenyLists: []DenyList{{Name: "spamhaus", Prefixes: 1400, Packets: 7, EndedFlows: 2}},
		Steering:  map[string]uint64{"frontend": 1005},
		Neighbors: []Neighbor{
			{Address: netip.MustParseAddr("192.0.2.254"), Interface: "eth0", MAC: "02:00:00:00:00:01", State: "valid"},
			{Address: netip.MustParseAddr("fe80::1"), Interface: "eth0", State: "resolving"},
		},
		StateFiles: []StateFile{{Name: "flow-table", NotUsed: map[string]uint64{"layout": 1, "untrusted": 0}}},
		Kernel: []Feature{
			{Name: "AF_XDP transmit metadata", Available: true},
			{Name: "AF_XDP multi-buffer", Instead: "needs an MTU of at most about 3500 bytes"},
		},
		Problems: []problem.Problem{
			{Kind: problem.Manifest, Severity: problem.Error, Object: "Service default/web", Field: "spec.ports[0].port", Reason: "\x1b[31m70000 is no port", Since: minute(1)},
			{Kind: problem.UnsupportedField, Severity: problem.Error, Object: "Service default/sctp", Field: "spec.ports[0].protocol SCTP", Reason: "not supported", Since: minute(2)},
			{Kind: problem.InterfaceWarning, Severity: problem.Warning, Object: "Interface eth0", Reason: "2 of 4 receive queues have no worker", Since: minute(3)},
			{Kind: problem.ManifestNote, Severity: problem.Note, Object: "File web.yaml", Reason: "Deployment is not used by Weir, skipped", Since: minute(4)},
		},
		ProblemsLeftOut: 2,
		ProblemCounts:   map[problem.Kind]int{problem.Manifest: 3, problem.UnsupportedField: 1, problem.InterfaceWarning: 1, problem.ManifestNote: 1},
	}
}

func minute(n int) time.Time { return time.Date(2026, 11, 20, 10, n, 0, 0, time.UTC) }

func exampleFlows() *FlowList {
	return &FlowList{Total: 7, Truncated: true, Flows: []Flow{{
		Protocol: "TCP", Client: netip.MustParseAddrPort("192.0.2.9:40000"), Frontend: netip.MustParseAddrPort("192.0.2.1:30080"),
		SNAT: netip.MustParseAddrPort("10.0.0.1:61000"), Endpoint: netip.MustParseAddrPort("10.0.0.2:8080"),
		Service: "default/web", Mode: "nat", State: "established", AgeSeconds: 65.5, IdleSeconds: 3.4,
	}, {
		Protocol: "UDP", Client: netip.MustParseAddrPort("[2001:db8::9]:5353"), Frontend: netip.MustParseAddrPort("[2001:db8::1]:53"),
		Endpoint: netip.MustParseAddrPort("[fd00::2]:53"), Mode: "dnat", State: "stream",
	}}}
}

func exampleFrontends() *FrontendList {
	return &FrontendList{Frontends: []Frontend{
		{Service: "default/web", PortName: "http", Address: "192.0.2.1:30080", Protocol: "TCP", Kind: "NodePort", Mode: "dnat", Tier: "same-zone", OnEmpty: "reject",
			Endpoints: []FrontendEndpoint{{"10.0.0.2:8080", true, "dnat", 0.5, 12}, {"10.0.0.3:8080", false, "nat", 0.5, 9}}},
		{Service: "default/dns", Address: "192.0.2.1:30053", Protocol: "UDP", Kind: "NodePort", Tier: "none", OnEmpty: "drop"},
	}}
}

func exampleServices() *ServiceList {
	return &ServiceList{Time: minute(30), Services: []ServiceState{{
		Service: "default/web", Open: 12, HalfOpen: 3, NewConnections: 12345, FailedHandshakes: 7, Retransmissions: Retransmissions{SYNs: 40, SYNACKs: 2, FINs: 1}, MaxConnections: 100,
		Packets: Traffic{123456, 100000}, Bytes: Traffic{9e6, 150e6},
		Handshakes: Histogram{Count: 3, SumSeconds: 0.0042, Buckets: []Bucket{{UpToSeconds: 0.001, Count: 2}, {Count: 1}}},
		Drops:      map[string]uint64{"connection-limit": 4, "source-range": 1},
		Ports: []ServicePort{{
			Name: "http", Protocol: "TCP", Port: 80, NodePort: 30080, Endpoints: 5, Ready: 4, EndpointsByTier: map[string]int{"same-zone": 1, "all": 3},
			Tiers: []TierInUse{{Family: "IPv4", Scope: "external", Tier: "same-zone", Endpoints: 1, Since: minute(3), Previous: "all"}},
		}},
	}, {
		Service: "default/none", Drops: map[string]uint64{}, Handshakes: Histogram{Buckets: []Bucket{}},
		Ports: []ServicePort{{Protocol: "UDP", Port: 53, EndpointsByTier: map[string]int{}, Tiers: []TierInUse{}}},
	}}}
}

func exampleEndpoints() *EndpointList {
	failed := minute(29)
	return &EndpointList{Endpoints: []EndpointState{
		{
			Service: "default/web", Port: "http", Protocol: "TCP", Address: "10.0.0.2:8080", Node: "edge-2", Zone: "a", State: "ready", Cluster: true,
			Used: true, Policy: "Cluster", Reason: "ready: in this node's zone a", Connections: 15, Open: 12,
			Health:   EndpointHealth{State: HealthPassing, LatencySeconds: 0.0012, FailedConnections: 3},
			Attempts: Attempts{Answered: 40, Refused: 2, Unanswered: 1, FailedInARow: 3, LastFailure: &failed},
		},
		{Service: "default/web", Port: "http", Protocol: "TCP", Address: "10.0.0.3:8080", State: "not-ready", Policy: "Cluster", Reason: "fails the health check: status 503; not ready",
			Health: EndpointHealth{State: HealthFailing, Reason: "status 503"}},
	}}
}

func exampleCount() *ConnectionCount {
	return &ConnectionCount{Matched: 100, Others: 5, Error: 2, Groups: []ConnectionGroup{{"192.0.2.0/24", 80}, {"198.51.100.0/24", 15}}}
}

func exampleEvents() *EventList {
	return &EventList{Last: 17, Events: []event.Event{{
		Number: 3, Kind: event.TierChanged, Severity: event.Note, Service: "default/web", Count: 1, First: minute(3), Last: minute(3),
		Text: "tier same-zone, was all; ports 80/TCP, IPv4, external, because 10.0.0.2 ready, was not-ready",
	}, {
		Number: 17, Kind: event.InterfaceAbsent, Severity: event.Error, Object: "Interface eth1", Count: 4, First: minute(3), Last: minute(9),
		Text: "interface eth1 is gone \x1b[31m",
	}}}
}
