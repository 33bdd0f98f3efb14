package conformance

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/gateway-api/conformance/tests"

	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/discovery/kube/kubetest"
	"github.com/weirlb/weir/perf/netlab"
	"github.com/weirlb/weir/perf/netlab/labtest"
	"github.com/weirlb/weir/perf/netlab/patience"
)

// controlCase is a case of traffic that has to fail without Weir, after a minute.
var controlCase = tests.UDPRouteTest.ShortName

// bed is a cluster of two nodes with Weir on the first.
type bed struct {
	*netlab.Edge
	t       *testing.T
	cluster *kubetest.Cluster
	client  kubernetes.Interface
	weir    string // the program
}

func TestGateways(t *testing.T) {
	labtest.Require(t)
	weir := os.Getenv("WEIR_BINARY")
	if weir == "" {
		labtest.Skip(t, "WEIR_BINARY is not set: run make conformance")
	}
	kubetest.Within = patience.For(2 * time.Minute)
	c := kubetest.Require(t, kubetest.Options{Deployments: true, NoEndpoints: true, Fast: true})
	lab, err := netlab.NewEdge(netlab.EdgeConfig{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := lab.Close(); err != nil {
			t.Error(err)
		}
	})
	b := &bed{lab, t, c, c.Client(t), weir}
	b.forwardAPIServer(lab.Edge)
	b.forwardAPIServer(lab.Client)
	site := kubetest.NewSite(t, b.client)
	site.Node("edge-1", "zone-a", netlab.Host4(netlab.FabricNet, 1))
	site.Node("node-a", "zone-a", netlab.Host4(netlab.FabricNet, 11))
	apply := c.Applier(t)
	apply.Definitions(definitions(t))
	apply.All("apiVersion: gateway.networking.k8s.io/v1\nkind: GatewayClass\nmetadata: {name: weir}\nspec: {controllerName: weir.dev/gateway-controller}\n")
	b.runPods()
	b.startController()
	b.control()
	version := b.startNode()

	results := os.Getenv("WEIR_CONFORMANCE_RESULTS") // a directory; empty: none
	report := ""
	if results != "" {
		report = filepath.Join(results, "conformance.yaml")
	}
	records, err := b.suite("", report, version)
	if err != nil {
		t.Error(err)
	}
	// Without TLSRoute this case ends before any check.
	alone, err := b.suite(tests.UDPRouteNotAllowedByListeners.ShortName, "", version)
	if err != nil {
		t.Error(err)
	}
	records = append(records, alone...) // the last one of a case counts
	text := b.report(records, version)
	t.Log("\n" + text)
	if results != "" {
		if err := os.WriteFile(filepath.Join(results, "conformance.txt"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// definitions are those of the standard channel, from the module.
func definitions(t *testing.T) (out string) {
	t.Helper()
	dir, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/gateway-api").Output()
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(strings.TrimSpace(string(dir)), "config/crd/standard/gateway.networking.k8s.io_*s.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no definitions: %v", err)
	}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(text), "kind: CustomResourceDefinition") {
			out += string(text) + "\n---\n"
		}
	}
	return out
}

func (b *bed) path(name string) string { return filepath.Join(b.Dir(), name) }

// forwardAPIServer lets a namespace reach the API server, which listens on the loopback of another one.
func (b *bed) forwardAPIServer(ns *netlab.Namespace) {
	b.t.Helper()
	addr := "127.0.0.1:" + b.cluster.Port()
	if _, err := b.Forward(ns, addr, func(net.Conn) (net.Conn, error) { return net.Dial("tcp", addr) }); err != nil {
		b.t.Fatal(err)
	}
}

// runPods builds the images of the suite, and runs the Pods until the test ends.
func (b *bed) runPods() {
	b.t.Helper()
	images := map[string]string{}
	for name, pkg := range map[string]string{"echo-basic": "sigs.k8s.io/gateway-api/conformance/echo-basic", "coredns": "./coredns"} {
		images[name] = b.path(name)
		cmd := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s", "-o", images[name], pkg)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0") // there is no library in the root directory of a Pod
		if out, err := cmd.CombinedOutput(); err != nil {
			b.t.Fatalf("build %s: %v\n%s", pkg, err, out)
		}
	}
	k := &kubelet{
		t: b.t, lab: b.Lab, client: b.client, images: images,
		nodes: []*node{{name: "edge-1", ns: b.Edge.Edge, network: netlab.PodNet}, {name: "node-a", ns: b.ZoneA, network: netlab.RemoteNet}},
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		k.run(ctx)
	}()
	b.OnClose(func() error {
		cancel()
		<-done
		return nil
	})
}

func (b *bed) startController() {
	b.t.Helper()
	pools := "apiVersion: metallb.io/v1beta1\nkind: IPAddressPool\nmetadata: {name: gateways, namespace: metallb-system}\nspec: {addresses: [" +
		netip.PrefixFrom(netlab.Host4(netlab.LBNet, 0), 24).String() + "], avoidBuggyIPs: true}\n"
	b.write("pools.yaml", pools)
	b.daemon("controller", "--gateways", "--lease", "", "--kubeconfig", b.cluster.Kubeconfig, "--pools", b.path("pools.yaml"))
}

// startNode starts Weir, waits until it serves, and returns the version.
func (b *bed) startNode() (version string) {
	b.t.Helper()
	b.write("config.yaml", fmt.Sprintf(`apiVersion: weir.dev/v1alpha1
kind: WeirConfiguration
nodeName: edge-1
discovery:
  kubernetes: {kubeconfig: %s}
interfaces: [{name: eth0}, {name: eth1}]
nodePortAddresses: ["%s/24"]
conntrack: {path: %s, maxFlows: 262144}
admin: {socket: %s}
stateDir: %s
`, b.cluster.Kubeconfig, netlab.Host4(netlab.ClientNet, 0), b.path("conntrack"), b.path("weir.sock"), b.path("state")))
	node := b.daemon("run", "--config", b.path("config.yaml"))
	ctx, cancel := context.WithTimeout(b.t.Context(), patience.For(time.Minute))
	defer cancel()
	if err := node.Until(ctx, func(ctx context.Context) error {
		s, err := api.NewClient(b.path("weir.sock")).Status(ctx)
		if err == nil && !s.Synced {
			err = errors.New("not synced")
		}
		if err == nil {
			version = s.Version
		}
		return err
	}); err != nil {
		b.t.Fatalf("weir run: %v", err)
	}
	return version
}

// control runs a case while no Weir serves: it must fail, or something else answers for the Gateways.
func (b *bed) control() {
	b.t.Helper()
	records, err := b.suite(controlCase, "", "none")
	if err == nil || !slices.ContainsFunc(records, func(r record) bool { return r.Case == controlCase && r.Result == "failed" }) {
		b.t.Fatalf("%s without Weir: %v, %+v", controlCase, err, records)
	}
}

func (b *bed) write(name, text string) {
	b.t.Helper()
	if err := os.WriteFile(b.path(name), []byte(text), 0o644); err != nil {
		b.t.Fatal(err)
	}
}

// daemon starts a subcommand of weir at the edge node.
func (b *bed) daemon(args ...string) *netlab.Daemon {
	b.t.Helper()
	d, err := b.Edge.Edge.StartDaemon(exec.Command(b.weir, args...), b.path("weir-"+args[0]+".log"))
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() {
		if b.t.Failed() {
			b.t.Logf("weir %s said:\n%s", args[0], d.LogTail(40))
		}
	})
	return d
}

// suite runs the official suite at the client, or the case alone, and returns the outcomes.
func (b *bed) suite(only, report, version string) (out []record, failed error) {
	b.t.Helper()
	file := b.path("records-" + only)
	cmd := exec.Command(os.Args[0], "-test.run", "^TestSuite$", "-test.v", "-test.timeout", "0")
	cmd.Env = append(os.Environ(), "KUBECONFIG="+b.cluster.Kubeconfig, recordsFile+"="+file, reportFile+"="+report,
		adminSocket+"="+b.path("weir.sock"), onlyCase+"="+only, weirVersion+"="+version)
	d, err := b.Client.StartDaemon(cmd, b.path("suite-"+only+".log"))
	if err != nil {
		b.t.Fatal(err)
	}
	if err := d.Err(); err != nil {
		failed = fmt.Errorf("the suite: %w\n%s", err, d.LogTail(300))
	}
	text, err := os.ReadFile(file)
	if err != nil {
		b.t.Fatal(err)
	}
	for dec := json.NewDecoder(strings.NewReader(string(text))); ; {
		var r record
		if err := dec.Decode(&r); errors.Is(err, io.EOF) {
			return out, failed
		} else if err != nil {
			b.t.Fatal(err)
		}
		out = append(out, r)
	}
}
