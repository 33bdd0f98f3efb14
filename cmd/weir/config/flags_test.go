package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
)

func load(t *testing.T, args ...string) (*Configuration, error) {
	t.Helper()
	fs := pflag.NewFlagSet("weir", pflag.ContinueOnError)
	f := AddFlags(fs)
	if err := fs.Parse(args); err != nil {
		t.Fatal(err)
	}
	return f.Load()
}

func file(t *testing.T) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "weir.yaml")
	if err := os.WriteFile(name, []byte(full), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

func TestOnlyFlagsGivenOverrideTheFile(t *testing.T) {
	t.Setenv("NODE_NAME", "")
	name := file(t)
	c, err := load(t, "--config", name)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(parse(t, full), c, ignoreOrigin); diff != "" {
		t.Errorf("without flags: -want +got:\n%s", diff)
	}

	c, err = load(t, "--config", name, "--snat-ports", "62000-63000", "--cluster-ips=false", "--workers", "auto")
	if err != nil {
		t.Fatal(err)
	}
	want := parse(t, full)
	want.SNAT.Ports, want.ClusterIPs, want.Workers.Count = PortRange{62000, 63000}, false, 0
	if diff := cmp.Diff(want, c, ignoreOrigin); diff != "" {
		t.Errorf("with flags: -want +got:\n%s", diff)
	}
}

func TestEveryFlagReachesItsField(t *testing.T) {
	t.Setenv("NODE_NAME", "")
	c, err := load(t, "--node-name=n", "--manifests=/m", "-i", "a,b", "--interface=c", "--mode=native", "--tx-checksum=software", "--frame-size=4096",
		"--node-port-addresses=10.0.0.0/8,fd00::/8", "--snat-addresses=192.0.2.1", "--snat-ports=61000",
		"--forwarding-mode=dnat", "--host-veth-prefixes=10.9.0.0/24", "--host-veth-mark=32", "--host-veth-table=9", "--protected-ports=22,80",
		"--cluster-ips", "--external-ips", "--workers=2", "--cpus=4-5",
		"--conntrack-max-flows=2048", "--conntrack-path=/c", "--conntrack-takeover-seconds=1", "--conntrack-endpoint-removal-grace-seconds=2",
		"--drain-not-ready-seconds=3", "--drain-timeout-seconds=4", "--death-hold-seconds=5", "--on-stop=leave",
		"--service-proxy-name=w", "--load-balancer-class=c", "--state-dir=/d", "--reverse-path-filter=loose",
		"--admin-socket=/s", "--admin-group=g", "--admin-group-access=full", "--metrics-bind-address=127.0.0.1:1", "--metrics-services=7", "--healthz-bind-address=127.0.0.1:2",
		"--profiling", "--log-level=warn", "--log-format=json")
	if err != nil {
		t.Fatal(err)
	}
	want := &Configuration{
		APIVersion: APIVersion, Kind: Kind, NodeName: "n",
		Discovery: Discovery{Manifests: &Manifests{"/m"}},
		Interfaces: []Interface{
			{Name: "a", Mode: ModeNative, TxChecksum: "software", Hook: HookXDP},
			{Name: "b", Mode: ModeNative, TxChecksum: "software", Hook: HookXDP},
			{Name: "c", Mode: ModeNative, TxChecksum: "software", Hook: HookXDP},
		},
		NodePortAddresses: []string{"10.0.0.0/8", "fd00::/8"},
		SNAT:              SNAT{[]string{"192.0.2.1"}, PortRange{61000, 61000}},
		Forwarding:        Forwarding{Mode: ForwardDNAT, MinPathMTU: 1280, ReversePathFilter: ReversePathLoose},
		HostVeth:          HostVeth{[]string{"10.9.0.0/24"}, 0x20, 9},
		ProtectedPorts:    []uint16{22, 80}, ProtectedEndpointPorts: Default().ProtectedEndpointPorts,
		ClusterIPs: true, ExternalIPs: true,
		Conntrack: Conntrack{2048, "/c", 1, 2},
		Flood:     Flood{IPv4PrefixLength: 24, IPv6PrefixLength: 56},
		Limits:    Limits{25, 50},
		Drain:     Drain{3, 4},
		Death:     Death{5},
		OnStop:    StopLeave,
		Workers:   Workers{2, CPUs{4, 5}, 12},
		FlowCache: FlowCache{FlowCacheOff}, Announce: Default().Announce,
		PacketMemory:     PacketMemory{4096},
		Admin:            Admin{"/s", "g", GroupAccessFull},
		ServiceProxyName: "w", LoadBalancerClass: "c", StateDir: "/d",
		MetricsBindAddress: "127.0.0.1:1", MetricsServices: 7, HealthzBindAddress: "127.0.0.1:2",
		EnableProfiling: true, Logging: Logging{"warn", "json"},
	}
	if diff := cmp.Diff(want, c, ignoreOrigin); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// A flag without an override would be accepted and ignored.
func TestEveryFlagIsHandled(t *testing.T) {
	fs := pflag.NewFlagSet("weir", pflag.ContinueOnError)
	f := AddFlags(fs)
	handled := map[string]bool{
		"config": true, "manifests": true, "kubeconfig": true, "label-selector": true, "legacy-endpoints": true, "last-known-max-age-hours": true,
		"interface": true, "mode": true, "tx-checksum": true, "protected-ports": true,
	}
	for _, o := range f.overrides() {
		handled[o.flag] = true
		if fs.Lookup(o.flag) == nil {
			t.Errorf("there is no flag --%s", o.flag)
		}
	}
	fs.VisitAll(func(fl *pflag.Flag) {
		if !handled[fl.Name] {
			t.Errorf("--%s overrides nothing", fl.Name)
		}
	})
}

func TestErrorsOfFlagsNameTheFlag(t *testing.T) {
	t.Setenv("NODE_NAME", "")
	c, err := load(t, "--config", file(t), "--interface", "eth0,eth0", "--forwarding-mode", "tunnel", "--mode", "fast", "--node-name", "X")
	if err != nil {
		t.Fatal(err)
	}
	want := `--node-name: nodeName: "X" is not a node's name: lower case letters, digits, - and . (RFC 1123)
--mode: interfaces[0].mode: must be auto, zerocopy, native or generic, is "fast"
--interface: interfaces[1].name: eth0 is listed twice
--mode: interfaces[1].mode: must be auto, zerocopy, native or generic, is "fast"
--forwarding-mode: forwarding.mode: must be nat, dnat, l2dsr, ipip, gue, is "tunnel"`
	if got := c.Validate().Error(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if _, err := load(t, "--protected-ports", "22,70000"); err == nil || !strings.Contains(err.Error(), "--protected-ports: protectedPorts[1]: expected a port") {
		t.Errorf("got %v", err)
	}
}

func TestNodeNameOfFlagEnvironmentFileHost(t *testing.T) {
	host, _ := os.Hostname()
	for _, tt := range []struct {
		name, env string
		args      []string
		want      string
	}{
		{"flag wins", "from-env", []string{"--config", file(t), "--node-name", "from-flag"}, "from-flag"},
		{"then environment", "from-env", []string{"--config", file(t)}, "from-env"},
		{"then file", "", []string{"--config", file(t)}, "edge-1"},
		{"then hostname", "", nil, strings.ToLower(host)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Setenv("NODE_NAME", tt.env)
			c, err := load(t, tt.args...)
			if err != nil {
				t.Fatal(err)
			}
			if c.NodeName != tt.want {
				t.Errorf("got %q, want %q", c.NodeName, tt.want)
			}
		})
	}
}

func TestSourceOfFlagTakesThePlaceOfTheFiles(t *testing.T) {
	c, err := load(t, "--config", file(t), "--kubeconfig", "/k")
	if err != nil {
		t.Fatal(err)
	}
	if c.Discovery.Manifests != nil || c.Discovery.Kubernetes == nil || c.Discovery.Kubernetes.Kubeconfig != "/k" {
		t.Errorf("got %+v", c.Discovery)
	}
	c, err = load(t, "--manifests", "/m", "--kubeconfig", "")
	if err != nil {
		t.Fatal(err)
	}
	if c.Discovery.Manifests == nil || c.Discovery.Kubernetes == nil {
		t.Errorf("two sources given are not both there: %+v", c.Discovery)
	}
}

func TestReloadReadsTheFileAgainAndKeepsTheFlags(t *testing.T) {
	t.Setenv("NODE_NAME", "")
	name := file(t)
	c, err := load(t, "--config", name, "--log-level", "warn")
	if err != nil {
		t.Fatal(err)
	}
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(strings.Replace(full, "clusterIPs: true", "clusterIPs: false", 1))
	n, err := c.Reload()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"clusterIPs"}, c.Changed(n)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if n.Logging.Level != "warn" {
		t.Errorf("the flag is lost: %+v", n.Logging)
	}
	write(strings.Replace(full, "mode: nat", "mode: tunnel", 1))
	if _, err := n.Reload(); err == nil || !strings.Contains(err.Error(), "forwarding.mode") {
		t.Errorf("an invalid file: %v", err)
	}
	write("nodeName: [")
	if _, err := n.Reload(); err == nil {
		t.Error("a broken file gives no error")
	}
	if _, err := Default().Reload(); err == nil {
		t.Error("a configuration without a source gives no error")
	}
}

// A process that started without a hold has none at its end: it goes on to drain then,
// whatever the file says by now.
func TestReloadMakesNoRestartWithoutAHold(t *testing.T) {
	next := Default()
	next.OnStop, next.Death.HoldSeconds = StopLeave, 10
	for _, tt := range []struct {
		hold int
		want string
		next []string
	}{
		{0, StopDetach, []string{"death.holdSeconds", "onStop"}},
		{10, StopLeave, nil},
	} {
		c := Default()
		c.Death.HoldSeconds = tt.hold
		later := c.TakeOver(next)
		if diff := cmp.Diff(tt.next, later); c.OnStop != tt.want || diff != "" {
			t.Errorf("held for %d s: onStop is %s, want %s; at the next start -want +got:\n%s", tt.hold, c.OnStop, tt.want, diff)
		}
	}
}
