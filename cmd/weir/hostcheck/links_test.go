package hostcheck

import (
	"encoding/base64"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/weirlb/weir/cmd/weir/config"
	"github.com/weirlb/weir/perf/netlab"
	"github.com/weirlb/weir/perf/netlab/labtest"
)

func TestLinksAreChecked(t *testing.T) {
	dir := t.TempDir()
	key := base64.StdEncoding.EncodeToString(make([]byte, 32))
	file := func(name, text string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	good, open, bad := file("good", key, 0o640), file("open", key, 0o644), file("bad", "hunter2", 0o600)
	for name, c := range map[string]struct {
		edit func(*config.Announce)
		want string // "": nothing
	}{
		"off":                   {func(a *config.Announce) { a.L2.Interfaces = nil }, ""},
		"no key":                {func(a *config.Announce) { a.L2.KeyFile = "" }, "every host on lo can take part"},
		"a key":                 {func(*config.Announce) {}, ""},
		"a key for all to read": {func(a *config.Announce) { a.L2.KeyFile = open }, "every user may read " + open + " (mode 0644)"},
		"no key in the file":    {func(a *config.Announce) { a.L2.KeyFile = bad }, "must have 16, 24 or 32 bytes"},
		"a password for all":    {func(a *config.Announce) { a.Peers = []config.Peer{{PasswordFile: open}} }, "announce.peers[0].passwordFile: every user may read"},
		"no interface":          {func(a *config.Announce) { a.L2.Interfaces = []string{"none0"} }, "interface none0: there is no such interface"},
		"no subnet":             {func(a *config.Announce) { a.Prefixes = []string{"192.0.2.0/24"} }, "192.0.2.1 is in no subnet of lo"},
		"several":               {func(a *config.Announce) { a.Prefixes = []string{"0.0.0.0/0"} }, "127.0.0.9 and 2 more addresses are"},
		"a speaker":             {func(a *config.Announce) { a.Prefixes, a.Speaker = []string{"0.0.0.0/0"}, config.AnnounceBGP }, ""},
	} {
		cfg := config.Default()
		cfg.Announce.L2.Interfaces, cfg.Announce.L2.KeyFile = []string{"lo"}, good
		cfg.Announce.Prefixes = []string{"203.0.113.0/24"}
		c.edit(&cfg.Announce)
		var fs findings
		checkLinks(&fs, cfg)
		checkSecretFiles(&fs, cfg)
		checkOnLinks(&fs, cfg, []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("127.0.0.9"), netip.MustParseAddr("198.51.100.1")})
		text := ""
		for _, f := range fs {
			text += f.String() + "\n"
		}
		if name == "no interface" && !slices.ContainsFunc(fs, func(f Finding) bool { return f.Level == Wrong }) {
			t.Errorf("%s: no error, unlike an interface to attach to: %+v", name, fs)
		}
		text = strings.ReplaceAll(text, "interface lo: nothing is announced on it: it has no address\n", "") // without a MAC address
		if c.want == "" && text != "" || !strings.Contains(text, c.want) || strings.Contains(text, "hunter2") {
			t.Errorf("%s: %q, want %q", name, text, c.want)
		}
	}
}

// Interfaces that get no answers for addresses that are announced on them.
func TestWireBridgesAreChecked(t *testing.T) {
	labtest.Require(t)
	lab, err := netlab.New()
	must(t, err)
	t.Cleanup(func() { must(t, lab.Close()) })
	node, err := lab.Namespace("node")
	must(t, err)
	far, err := lab.Namespace("far")
	must(t, err)
	must(t, netlab.Connect(netlab.End{Namespace: node, Name: "eth0"}, netlab.End{Namespace: far, Name: "eth0"}, netlab.LinkConfig{}))
	must(t, node.Bridge("br0", []string{"eth0"}))
	port, err := node.Interface("eth0")
	must(t, err)
	check := func(name, want string) {
		t.Helper()
		l, err := node.Interface(name)
		must(t, err)
		var fs findings
		must(t, node.Do(func() error { checkBridges(&fs, l); return nil }))
		if text := fmt.Sprint(fs); want == "" && len(fs) > 0 || !strings.Contains(text, want) {
			t.Errorf("%s: %s, want %q", name, text, want)
		}
	}
	check("eth0", "it is a port of bridge br0")
	check("br0", "")
	must(t, node.Netlink().LinkSetLearning(port, false))
	check("br0", "")
	must(t, node.Netlink().LinkSetFlood(port, false))
	check("br0", "its port eth0 neither learns MAC addresses nor gets frames for unknown ones")
}

// An address in the node's own subnet is found that nobody answers for, and an endpoint on this machine that is
// protected, without a Node object.
func TestWireManifestsAreCheckedAgainstTheMachine(t *testing.T) {
	labtest.Require(t)
	lab, err := netlab.NewLAN(1)
	must(t, err)
	t.Cleanup(func() { must(t, lab.Close()) })
	dir := t.TempDir()
	own, vip := netlab.Host4(netlab.LANNet, netlab.LANFirstNode), netlab.Host4(netlab.LANNet, 100)
	must(t, os.WriteFile(filepath.Join(dir, "api.yaml"), fmt.Appendf(nil, `apiVersion: v1
kind: Service
metadata: {namespace: kube-system, name: api}
spec: {type: LoadBalancer, allocateLoadBalancerNodePorts: false, clusterIP: 10.96.0.9, ports: [{name: https, port: 6443}]}
status: {loadBalancer: {ingress: [{ip: %s, ipMode: VIP}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {namespace: kube-system, name: api-1, labels: {kubernetes.io/service-name: api}}
addressType: IPv4
ports: [{name: https, port: 6443, protocol: TCP}]
endpoints: [{addresses: [%s], conditions: {ready: true}}]
`, vip, own), 0o600))
	const unanswered, protected = "10.70.0.100 is in its subnet, and this node does not answer", "port 6443 of the node's own addresses is protected"
	for name, c := range map[string]struct {
		edit func(*config.Configuration)
		want []string
	}{
		"defaults":  {func(*config.Configuration) {}, []string{unanswered, protected}},
		"announced": {func(c *config.Configuration) { c.Announce.L2.Interfaces = []string{"eth0"} }, []string{protected}},
		"allowed":   {func(c *config.Configuration) { c.ProtectedEndpointPorts = nil }, []string{unanswered}},
	} {
		cfg := config.Default()
		cfg.NodeName, cfg.Discovery.Manifests = "node1", &config.Manifests{Path: dir}
		cfg.Interfaces = []config.Interface{{Name: "eth0"}}
		c.edit(cfg)
		var fs findings
		must(t, lab.Nodes[0].Do(func() error { checkManifests(&fs, cfg); return nil }))
		text := fmt.Sprint(fs)
		for _, line := range []string{unanswered, protected} {
			if strings.Contains(text, line) != slices.Contains(c.want, line) {
				t.Errorf("%s: %q, want %q", name, text, c.want)
			}
		}
	}
}
