package config

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
	yaml "go.yaml.in/yaml/v3"
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

	c, err = load(t, "--config", name, "--set", "snat.ports=62000-63000", "--set=clusterIPs=false", "--set", "workers.count=auto")
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
	c, err := load(t, "--node-name=n", "--manifests=/m", "-i", "a,b", "--interface=c", "--admin-socket=/s",
		"--set=interfaces[1].mode=native", "--set=interfaces[3].name=d", "--set=nodePortAddresses=[10.0.0.0/8, fd00::/8]", "--set=snat={addresses: [192.0.2.1], ports: 61000}",
		"--set=hostVeth.mark=0x20", "--set=protectedPorts=[22]", "--set", "workers.cpus=4-5", "--set=conntrack.path=", "--set=logging.level=debug", "--set=logging.level=warn",
		"--set=announce.peers[0].address=192.0.2.9")
	if err != nil {
		t.Fatal(err)
	}
	want := Default()
	want.NodeName, want.Discovery.Manifests, want.Admin.Socket = "n", &Manifests{"/m"}, "/s"
	for _, name := range []string{"a", "b", "c", "d"} {
		want.Interfaces = append(want.Interfaces, Interface{Name: name, Mode: ModeAuto, TxChecksum: TxChecksumAuto, Hook: HookAuto})
	}
	want.Interfaces[1].Mode = ModeNative
	want.NodePortAddresses, want.ProtectedPorts = []string{"10.0.0.0/8", "fd00::/8"}, []uint16{22}
	want.SNAT = SNAT{[]string{"192.0.2.1"}, PortRange{61000, 61000}}
	want.HostVeth.Mark, want.Workers.CPUs, want.Conntrack.Path, want.Logging.Level = 0x20, CPUs{4, 5}, "", "warn"
	want.Announce.Peers = []Peer{{Address: "192.0.2.9"}}
	if diff := cmp.Diff(want, c, ignoreOrigin); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// A setting changes a field of the file and none beside it, also where two fields share an anchor.
func TestASettingChangesItsFieldAlone(t *testing.T) {
	t.Setenv("NODE_NAME", "")
	name := filepath.Join(t.TempDir(), "weir.yaml")
	text := "apiVersion: weir.dev/v1alpha1\nkind: WeirConfiguration\ninterfaces:\n- &a {name: eth0, mode: native}\n- *a\nlogging: {level: debug, format: json}\n"
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := load(t, "-c", name, "--set", "interfaces[1].name=eth1", "--set=logging.level=null")
	if err != nil {
		t.Fatal(err)
	}
	if got := c.Interfaces; len(got) != 2 || got[0].Name != "eth0" || got[1].Name != "eth1" || got[1].Mode != ModeNative {
		t.Errorf("interfaces: %+v", got)
	}
	if want := (Logging{Default().Logging.Level, "json"}); c.Logging != want {
		t.Errorf("logging: %+v, want %+v", c.Logging, want)
	}
}

func TestErrorsOfFlagsNameTheFlag(t *testing.T) {
	t.Setenv("NODE_NAME", "")
	c, err := load(t, "--config", file(t), "--interface", "eth0,eth0", "--set", "forwarding.mode=tunnel", "--set=interfaces[1].mode=fast", "--node-name", "X")
	if err != nil {
		t.Fatal(err)
	}
	want := `--node-name: nodeName: "X" is not a node's name: lower case letters, digits, - and . (RFC 1123)
--interface: interfaces[1].name: eth0 is listed twice
--set: interfaces[1].mode: must be auto, zerocopy, native or generic, is "fast"
--set: forwarding.mode: must be nat, dnat, l2dsr, ipip, gue, is "tunnel"`
	if got := c.Validate().Error(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestASettingThatCannotBeIsRefused(t *testing.T) {
	for text, want := range map[string]string{
		"forwarding.mod=nat":      "--set: forwarding.mod: unknown field (did you mean mode?)",
		"mode=nat":                "--set: mode: unknown field",
		"forwarding":              `--set: expected PATH=VALUE such as forwarding.mode=dnat, got "forwarding"`,
		"=x":                      `--set: expected PATH=VALUE such as forwarding.mode=dnat, got "=x"`,
		"snat.ports=9-1":          "--set: snat.ports: the range 9-1 ends before it begins",
		"clusterIPs=yes":          `--set: clusterIPs: expected true or false, got "yes"`,
		"protectedPorts[1]=70000": "--set: protectedPorts[1]: expected a whole number from 1 to 65535, got 70000",
		"protectedPorts[9]=22":    "--set: protectedPorts[9]: there is no 9 in a list",
		"protectedPorts.x=22":     "--set: protectedPorts.x: there is no x in a list",
		"nodeName.x=22":           `--set: nodeName.x: there is no x in "edge-1"`,
		"snat={":                  "--set: snat: not YAML: line 1: did not find expected node content",
	} {
		if _, err := load(t, "--config", file(t), "--set", text); err == nil || err.Error() != want {
			t.Errorf("%s: got  %v\nwant %s", text, err, want)
		}
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
	c, err := load(t, "--config", name, "--set", "logging.level=warn")
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

func FuzzSetting(f *testing.F) {
	f.Add(full, "interfaces[1].name=eth1")
	f.Add("kind: &a [*a]", "kind[0].x={y: [z]}")
	f.Add("a: &a {b: [1]}\nc: *a", "c.b[0]=&d [*d]")
	f.Add("a: b", "a[.b]..c=null")
	f.Fuzz(func(t *testing.T, text, set string) {
		d := decoder{file: "fuzz", given: map[*yaml.Node]string{}}
		root := d.parse([]byte(text))
		s, err := parseSetting(set)
		if root == nil || err != nil {
			return
		}
		d.set(root, s)
		if c, err := d.finish(root); c == nil && (err == nil || err.Error() == "") {
			t.Error("neither a configuration nor an error")
		}
	})
}

// A setting of an element changes no other of a list that is the default, and a setting of a field with
// an anchor none of those that refer to it.
func TestASettingKeepsWhatIsBesideIt(t *testing.T) {
	t.Setenv("NODE_NAME", "")
	name := filepath.Join(t.TempDir(), "weir.yaml")
	text := "apiVersion: weir.dev/v1alpha1\nkind: WeirConfiguration\ndrain: {notReadySeconds: &n 7, timeoutSeconds: *n}\n" +
		"interfaces:\n- &a {name: eth0, mode: native}\n- *a\n"
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := load(t, "-c", name, "--set=drain.notReadySeconds=5", "--set=interfaces[0].name=eth1", "--set=protectedPorts[1]=443", "--set=protectedPorts[3]=80")
	if err != nil {
		t.Fatal(err)
	}
	if c.Drain.NotReadySeconds != 5 || c.Drain.TimeoutSeconds != 7 || c.Interfaces[0].Name != "eth1" || c.Interfaces[1].Name != "eth0" {
		t.Errorf("an alias has changed: %+v, %+v", c.Drain, c.Interfaces)
	}
	want := slices.Clone(Default().ProtectedPorts)
	want[1] = 443
	if want = append(want, 80); !slices.Equal(c.ProtectedPorts, want) {
		t.Errorf("ports %v, want %v", c.ProtectedPorts, want)
	}
}
