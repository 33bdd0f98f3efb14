package config

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// full is the example of the documentation: every field is given.
const full = `apiVersion: weir.dev/v1alpha1
kind: WeirConfiguration
nodeName: edge-1
discovery:
  manifests: {path: /etc/weir/manifests}
interfaces: [{name: eth0, mode: auto, txChecksum: software, hook: xdp}, {name: eth1}]
nodePortAddresses: [192.0.2.0/24, "2001:db8::/64"]
snat: {addresses: [198.51.100.7], ports: 61000-62000}
forwarding: {mode: nat}
hostVeth: {prefixes: [169.254.77.0/24, "fd77:7765:6972::/64"], mark: 0x1000, table: 100, probeMark: 0x20, probeTable: 101}
protectedPorts: [22, 6443, 10250]
protectedEndpointPorts: [22, 2379]
clusterIPs: true
externalIPs: true
conntrack: {maxFlows: 65536, path: /run/weir/conntrack, takeoverSeconds: 0, endpointRemovalGraceSeconds: 30}
drain: {notReadySeconds: 5, timeoutSeconds: 60}
death: {holdSeconds: 20}
onStop: leave
workers: {count: 2, cpus: "2-3"}
flowCache: {mode: "off"}
packetMemory: {frameSize: 4096}
admin: {socket: /run/weir/weir.sock}
metricsBindAddress: 127.0.0.1:9464
metricsServices: 100
healthzBindAddress: "[::]:9465"
enableProfiling: true
flowLog: {ipfixCollector: "[2001:db8::9]:4739", jsonFile: /var/log/weir/flows.json, maxPerSecond: 500}
statusPage: {bindAddress: "127.0.0.1:9466", tokenFile: /etc/weir/token}
logging: {level: debug, format: json}
serviceProxyName: weir
loadBalancerClass: weir.dev/weir
stateDir: /var/lib/weir
denyLists: [{name: drop, file: /etc/weir/drop.txt, established: keep, scope: services}]
flood: {newConnectionsPerPrefix: 500, ipv4PrefixLength: 28, ipv6PrefixLength: 48}
healthChecks: {passive: "off"}
limits: {servicePercent: 10, namespacePercent: 30}
`

// ignoreOrigin leaves out where values came from.
var ignoreOrigin = cmpopts.IgnoreUnexported(Configuration{})

func parse(t *testing.T, text string) *Configuration {
	t.Helper()
	c, err := Unmarshal([]byte(text), "weir.yaml")
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestUnmarshalTakesEveryField(t *testing.T) {
	want := &Configuration{
		APIVersion: APIVersion, Kind: Kind, NodeName: "edge-1",
		Discovery:         Discovery{Manifests: &Manifests{Path: "/etc/weir/manifests"}},
		ServiceProxyName:  "weir",
		LoadBalancerClass: "weir.dev/weir",
		Interfaces:        []Interface{{Name: "eth0", Mode: ModeAuto, TxChecksum: TxChecksumSoftware, Hook: HookXDP}, {Name: "eth1", Mode: ModeAuto, TxChecksum: TxChecksumAuto, Hook: HookAuto}},
		NodePortAddresses: []string{"192.0.2.0/24", "2001:db8::/64"},
		SNAT:              SNAT{Addresses: []string{"198.51.100.7"}, Ports: PortRange{61000, 62000}},
		Forwarding:        Forwarding{Mode: ForwardNAT, MinPathMTU: 1280, ReversePathFilter: ReversePathAuto},
		HostVeth:          HostVeth{[]string{"169.254.77.0/24", "fd77:7765:6972::/64"}, 0x1000, 100, 0x20, 101},
		ProtectedPorts:    []uint16{22, 6443, 10250}, ProtectedEndpointPorts: []uint16{22, 2379},
		ClusterIPs: true, ExternalIPs: true,
		Conntrack:          Conntrack{65536, "/run/weir/conntrack", 0, 30},
		DenyLists:          []DenyList{{Name: "drop", File: "/etc/weir/drop.txt", Established: DeniedKeep, Scope: ScopeServices}},
		Flood:              Flood{500, 28, 48},
		HealthChecks:       HealthChecks{PassiveOff},
		Limits:             Limits{10, 30},
		Drain:              Drain{5, 60},
		Death:              Death{20},
		OnStop:             StopLeave,
		Workers:            Workers{Count: 2, CPUs: CPUs{2, 3}, StallSeconds: 12},
		FlowCache:          FlowCache{Mode: FlowCacheOff},
		Announce:           Default().Announce,
		PacketMemory:       PacketMemory{FrameSize: 4096},
		Admin:              Admin{"/run/weir/weir.sock", "", GroupAccessRead},
		StateDir:           "/var/lib/weir",
		MetricsBindAddress: "127.0.0.1:9464", MetricsServices: 100, HealthzBindAddress: "[::]:9465",
		EnableProfiling: true,
		FlowLog:         FlowLog{"[2001:db8::9]:4739", "/var/log/weir/flows.json", 500},
		StatusPage:      StatusPage{"127.0.0.1:9466", "/etc/weir/token"},
		Logging:         Logging{"debug", "json"},
	}
	got := parse(t, full)
	if diff := cmp.Diff(want, got, ignoreOrigin); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if errs := got.Validate(); len(errs) > 0 {
		t.Errorf("Validate: %v", errs)
	}
}

func TestUnmarshalLeavesDefaultsForWhatIsNotSaid(t *testing.T) {
	got := parse(t, "apiVersion: weir.dev/v1alpha1\nkind: WeirConfiguration\nsnat:\nworkers: {count: auto}\n")
	if diff := cmp.Diff(Default(), got, ignoreOrigin); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestDefaultsAreValidOnceTheRequiredIsGiven(t *testing.T) {
	c := Default()
	c.NodeName = "edge-1"
	c.Interfaces = []Interface{{Name: "eth0", Mode: ModeAuto, TxChecksum: TxChecksumAuto, Hook: HookAuto}}
	c.Discovery.Manifests = &Manifests{Path: "/etc/weir/manifests"}
	if errs := c.Validate(); len(errs) > 0 {
		t.Error(errs)
	}
}

func TestMarshalReadsBackTheSame(t *testing.T) {
	empty := Default() // lists that are empty on purpose must stay so
	empty.NodePortAddresses, empty.ProtectedPorts, empty.ProtectedEndpointPorts, empty.HostVeth.Prefixes = nil, nil, nil, nil
	for _, c := range []*Configuration{parse(t, full), Default(), empty} {
		data, err := c.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(c, parse(t, string(data)), ignoreOrigin, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("-before +after:\n%s\n%s", diff, data)
		}
	}
}

func TestUnmarshalRefuses(t *testing.T) {
	const head = "apiVersion: weir.dev/v1alpha1\nkind: WeirConfiguration\n"
	for _, tt := range []struct{ name, text, want string }{
		{"empty file", "", "weir.yaml: the file is empty"},
		{"comment only", "# nothing\n", "weir.yaml: the file is empty"},
		{"no YAML", "a: [", "weir.yaml:1: not YAML: did not find expected node content"},
		{"a list", "- a", "weir.yaml:1: expected a mapping, got a list"},
		{"second document", head + "---\na: b\n", "weir.yaml:3: a second document: the file must hold one WeirConfiguration"},
		{"unknown field", head + "nodename: a\n", "weir.yaml:3: nodename: unknown field (did you mean nodeName?)"},
		{"unknown field within", head + "discovery:\n  manifest: {path: /m}\n", "weir.yaml:4: discovery.manifest: unknown field (did you mean manifests?)"},
		{"unknown field in list", head + "interfaces:\n- name: a\n- nam: b\n", "weir.yaml:5: interfaces[1].nam: unknown field (did you mean name?)"},
		{"unknown field like none", head + "xyzzy: 1\n", "weir.yaml:3: xyzzy: unknown field"},
		{"field twice", head + "nodeName: a\nnodeName: b\n", `weir.yaml:4: not YAML: mapping key "nodeName" already defined at line 3`},
		{"merge key", head + "snat: &a {ports: 1}\nhostVeth: {<<: *a}\n", "weir.yaml:4: hostVeth.ports: unknown field"},
		{"number for string", head + "nodeName: 7\n", "weir.yaml:3: nodeName: expected a string, got 7"},
		{"string for bool", head + "clusterIPs: \"true\"\n", `weir.yaml:3: clusterIPs: expected true or false, got "true"`},
		{"yes for bool", head + "clusterIPs: yes\n", `weir.yaml:3: clusterIPs: expected true or false, got "yes"`},
		{"string for number", head + "conntrack: {takeoverSeconds: soon}\n", `weir.yaml:3: conntrack.takeoverSeconds: expected a whole number, got "soon"`},
		{"fraction for number", head + "conntrack: {takeoverSeconds: 1.5}\n", "weir.yaml:3: conntrack.takeoverSeconds: expected a whole number, got 1.5"},
		{"scalar for list", head + "protectedPorts: 22\n", "weir.yaml:3: protectedPorts: expected a list, got 22"},
		{"port too large", head + "protectedPorts: [22, 65536]\n", "weir.yaml:3: protectedPorts[1]: expected a whole number from 1 to 65535, got 65536"},
		{"no port", head + "protectedPorts: [22, ~]\n", "weir.yaml:3: protectedPorts[1]: expected an element, got nothing"},
		{"mapping for scalar", head + "nodeName: {a: b}\n", "weir.yaml:3: nodeName: expected a string, got a mapping"},
		{"range backwards", head + "snat: {ports: 65535-61000}\n", "weir.yaml:3: snat.ports: the range 65535-61000 ends before it begins"},
		{"range of words", head + "snat: {ports: many}\n", `weir.yaml:3: snat.ports: expected auto, or a range of ports such as 61000-65535, got "many"`},
		{"range as list", head + "snat: {ports: [1, 2]}\n", "weir.yaml:3: snat.ports: expected auto, or a range of ports such as 61000-65535, got a list"},
		{"flows zero", head + "conntrack: {maxFlows: 0}\n", `weir.yaml:3: conntrack.maxFlows: expected auto or a positive number, got "0"`},
		{"flows beyond int", head + "conntrack: {maxFlows: 99999999999}\n", `weir.yaml:3: conntrack.maxFlows: expected auto or a positive number, got "99999999999"`},
		{"CPU twice", head + "workers: {cpus: \"1-3,2\"}\n", "weir.yaml:3: workers.cpus: CPU 2 is listed twice"},
		{"CPUs backwards", head + "workers: {cpus: 3-1}\n", `weir.yaml:3: workers.cpus: expected auto or CPU numbers such as 2-5,8, got "3-1"`},
		{"no CPU", head + "workers: {cpus: []}\n", "weir.yaml:3: workers.cpus: expected auto or CPU numbers, got an empty list"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := Unmarshal([]byte(tt.text), "weir.yaml")
			if err == nil {
				t.Fatal("no error")
			}
			if err.Error() != tt.want {
				t.Errorf("got  %s\nwant %s", err, tt.want)
			}
		})
	}
}

func TestUnmarshalSaysAllThatIsWrongAtOnce(t *testing.T) {
	_, err := Unmarshal([]byte("kind: 3\ndiscovery: {manifest: x}\nclusterIPs: 1\ninterfaces: eth0\n"), "f")
	want := `f:1: kind: expected a string, got 3
f:2: discovery.manifest: unknown field (did you mean manifests?)
f:3: clusterIPs: expected true or false, got 1
f:4: interfaces: expected a list, got "eth0"`
	if err == nil || err.Error() != want {
		t.Errorf("got\n%v\nwant\n%s", err, want)
	}
}

func TestUnmarshalTakesJSON(t *testing.T) {
	got := parse(t, `{"apiVersion":"weir.dev/v1alpha1","kind":"WeirConfiguration","nodeName":"edge-1","workers":{"count":3,"cpus":[4,2,3]}}`)
	if got.NodeName != "edge-1" || got.Workers.Count != 3 || got.Workers.CPUs.String() != "4,2-3" {
		t.Errorf("got %+v", got)
	}
}

func TestReadNamesTheFile(t *testing.T) {
	_, err := Read("/nonexistent/weir.yaml")
	if err == nil || !strings.Contains(err.Error(), "/nonexistent/weir.yaml: no such file or directory") {
		t.Errorf("got %v", err)
	}
	big := filepath.Join(t.TempDir(), "big.yaml")
	if err := os.WriteFile(big, make([]byte, MaxFileSize+1), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(big); err == nil || !strings.Contains(err.Error(), "larger than") {
		t.Errorf("got %v", err)
	}
}

func TestParsedViews(t *testing.T) {
	c := parse(t, full)
	if p, primary := c.NodePortPrefixes(); primary || len(p) != 2 || p[1] != netip.MustParsePrefix("2001:db8::/64") {
		t.Errorf("NodePortPrefixes: %v %v", p, primary)
	}
	if _, primary := Default().NodePortPrefixes(); !primary {
		t.Error("the default is not primary")
	}
	if a := c.SNATAddresses(); len(a) != 1 || a[0] != netip.MustParseAddr("198.51.100.7") {
		t.Errorf("SNATAddresses: %v", a)
	}
	v4, v6 := c.HostVethPrefixes()
	if v4 != netip.MustParsePrefix("169.254.77.0/24") || v6 != netip.MustParsePrefix("fd77:7765:6972::/64") {
		t.Errorf("HostVethPrefixes: %v %v", v4, v6)
	}
}

func TestChangedNamesFields(t *testing.T) {
	a, b := parse(t, full), parse(t, full)
	if got := a.Changed(b); len(got) > 0 {
		t.Errorf("equal configurations differ in %v", got)
	}
	b.SNAT.Ports.Hi = 63000
	b.Interfaces[1].Mode = ModeGeneric
	b.Discovery.Manifests.Path = "/elsewhere"
	b.ClusterIPs = false
	b.Workers.CPUs = nil
	want := []string{"clusterIPs", "discovery.manifests.path", "interfaces", "snat.ports", "workers.cpus"}
	if diff := cmp.Diff(want, a.Changed(b)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestCloneSharesNothing(t *testing.T) {
	a := parse(t, full)
	b, err := a.Clone()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(a, b, ignoreOrigin); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	b.Interfaces[0].Name, b.Discovery.Manifests.Path = "x", "y"
	if a.Interfaces[0].Name != "eth0" || a.Discovery.Manifests.Path != "/etc/weir/manifests" {
		t.Error("a change of the copy shows in the original")
	}
}

func FuzzConfig(f *testing.F) {
	f.Add([]byte(full))
	f.Add([]byte("a: &a [*a]"))
	f.Add([]byte(`{"interfaces":[{"name":"eth0"},{"name":1}],"workers":{"cpus":[1,2]}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := Unmarshal(data, "fuzz")
		if err != nil {
			if err.Error() == "" {
				t.Error("an error that says nothing")
			}
			return
		}
		_ = c.Validate().Error()
		out, err := c.Marshal()
		if err != nil {
			t.Fatalf("Marshal: %v", err)
		}
		again, err := Unmarshal(out, "again")
		if err != nil {
			t.Fatalf("what was written cannot be read: %v\n%s", err, out)
		}
		if diff := cmp.Diff(c, again, ignoreOrigin, cmpopts.EquateEmpty()); diff != "" {
			t.Fatalf("-before +after:\n%s", diff)
		}
	})
}
