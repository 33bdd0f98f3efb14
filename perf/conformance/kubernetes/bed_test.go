package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clientset "k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/perf/netlab"
	"github.com/weirlb/weir/perf/netlab/patience"
	"github.com/weirlb/weir/perf/netlab/router"
)

const (
	nodeCount   = 3 // the most that a case needs
	apiPort     = "6443"
	clusterCIDR = "10.244.0.0/16"
	domain      = "cluster.local"
)

// bed is a cluster of three nodes behind a router.
type bed struct {
	*netlab.Fleet
	t      *testing.T
	bin    string // directory of Kubernetes' programs
	weir   string // the program
	client clientset.Interface
}

func newBed(t *testing.T, bin, weir string) *bed {
	t.Helper()
	removeCgroups(t)
	makeFixed(t)
	f, err := netlab.NewFleet(nodeCount)
	must(t, err)
	b := &bed{Fleet: f, t: t, bin: bin, weir: weir}
	t.Cleanup(func() { must(t, f.Close()) })
	t.Cleanup(b.endShims) // after the nodes, whose clean-up is registered later
	_, err = router.StartFRR(f.Router, f.Dir(), router.FRR(router.Neighbors{Ranges: []netip.Prefix{netip.PrefixFrom(netlab.Host4(netlab.FleetNet, 0), 24)}}))
	must(t, err)
	b.controlPlane()
	images := b.path("images.tar")
	must(t, writeImages(images, bin))
	for i := range nodeCount {
		b.node(i, images)
	}
	b.ready()
	return b
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (b *bed) path(name ...string) string { return filepath.Join(b.Dir(), filepath.Join(name...)) }

func (b *bed) kubeconfig() string { return b.path("cluster", "kubeconfig") }

func (b *bed) write(file, text string) string {
	b.t.Helper()
	must(b.t, os.MkdirAll(filepath.Dir(b.path(file)), 0o755))
	must(b.t, os.WriteFile(b.path(file), []byte(text), 0o644))
	return b.path(file)
}

// daemon starts a program in a namespace. The end of its log is shown if the test fails.
func (b *bed) daemon(n *netlab.Namespace, program string, args ...string) *netlab.Daemon {
	b.t.Helper()
	return b.command(n, exec.Command(program, args...))
}

func (b *bed) command(n *netlab.Namespace, cmd *exec.Cmd) *netlab.Daemon {
	b.t.Helper()
	name := n.Name() + "-" + filepath.Base(cmd.Path)
	d, err := n.StartDaemon(cmd, b.path(name+".log"))
	must(b.t, err)
	b.t.Cleanup(func() {
		if b.t.Failed() {
			b.t.Logf("%s said:\n%s", name, d.LogTail(10))
		}
	})
	return d
}

func (b *bed) kubernetes(n *netlab.Namespace, name string, args ...string) *netlab.Daemon {
	b.t.Helper()
	return b.daemon(n, filepath.Join(b.bin, name), args...)
}

// until waits for progress of a daemon.
func (b *bed) until(d *netlab.Daemon, what string, try func(context.Context) error) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), patience.For(2*time.Minute))
	defer cancel()
	if err := d.Until(ctx, try); err != nil {
		b.t.Fatalf("%s: %v\n%s", what, err, d.LogTail(30))
	}
}

// controlPlane starts the API server, the controllers, the scheduler and the DNS on the server of the fleet.
func (b *bed) controlPlane() {
	b.t.Helper()
	dir := b.path("cluster")
	cmd := exec.Command(os.Getenv("KUBEENV_BIN"), "-dir", dir, "-port", apiPort, "-controllers=false", "-cidr", "10.96.0.0/16",
		"-apiserver-args", "--allow-privileged=true --kubelet-preferred-address-types=InternalIP --enable-priority-and-fairness=false")
	in, err := cmd.StdinPipe() // its end ends the API server
	must(b.t, err)
	b.OnClose(in.Close)
	server := b.command(b.Server, cmd)
	for _, n := range append([]*netlab.Namespace{b.Client}, b.Nodes...) {
		b.forwardAPIServer(n)
	}
	b.until(server, "the API server", func(ctx context.Context) error {
		cfg, err := clientcmd.BuildConfigFromFlags("", b.kubeconfig())
		if err != nil {
			return err
		}
		cfg.Dial, cfg.QPS = b.Server.DialContext, -1
		if b.client, err = clientset.NewForConfig(cfg); err != nil {
			return err
		}
		return b.client.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
	})
	b.kubernetes(b.Server, "kube-controller-manager", "--kubeconfig="+b.kubeconfig(), "--leader-elect=false", "--cert-dir="+dir,
		"--service-account-private-key-file="+filepath.Join(dir, "sa.key"), "--root-ca-file="+filepath.Join(dir, "certs", "apiserver.crt"))
	b.kubernetes(b.Server, "kube-scheduler", "--kubeconfig="+b.kubeconfig(), "--leader-elect=false")
	b.kubernetes(b.Server, "coredns", "-conf", b.write("Corefile", fmt.Sprintf(".:53 {\n errors\n kubernetes %s {\n  kubeconfig %s\n  ttl 0\n }\n}\n", domain, b.kubeconfig())))
}

// forwardAPIServer lets a namespace reach the API server, which listens on the loopback of the server.
func (b *bed) forwardAPIServer(n *netlab.Namespace) {
	b.t.Helper()
	addr := net.JoinHostPort("127.0.0.1", apiPort)
	_, err := b.Forward(n, addr, func(net.Conn) (net.Conn, error) { return b.Server.DialContext(context.Background(), "tcp", addr) })
	must(b.t, err)
}

// ready waits until Pods can be scheduled on all nodes.
func (b *bed) ready() {
	b.t.Helper()
	deadline := time.Now().Add(patience.For(3 * time.Minute))
	for {
		var notReady []string
		nodes, err := b.client.CoreV1().Nodes().List(b.t.Context(), metav1.ListOptions{})
		if err == nil {
			for _, n := range nodes.Items {
				for _, t := range n.Spec.Taints {
					notReady = append(notReady, n.Name+": "+t.Key)
				}
			}
			if len(nodes.Items) == nodeCount && len(notReady) == 0 {
				return
			}
		}
		if time.Now().After(deadline) {
			b.t.Fatalf("the nodes are not ready: %v, %v", err, notReady)
		}
		time.Sleep(200 * time.Millisecond)
	}
}

// avoidFirst has the scheduler prefer other nodes than the first, whose address the cases ask.
func (b *bed) avoidFirst(avoid bool) {
	b.t.Helper()
	taints := "null"
	if avoid {
		taints = `[{"key": "weir.dev/asked", "effect": "PreferNoSchedule"}]`
	}
	_, err := b.client.CoreV1().Nodes().Patch(b.t.Context(), nodeName(0), types.StrategicMergePatchType,
		[]byte(`{"spec": {"taints": `+taints+`}}`), metav1.PatchOptions{})
	must(b.t, err)
}

// startWeir starts a Weir per node, waits until all serve, and returns the version.
func (b *bed) startWeir() (version string) {
	b.t.Helper()
	for i, n := range b.Nodes {
		dir := b.path(nodeName(i))
		config := b.write(nodeName(i)+"/weir.yaml", fmt.Sprintf(`apiVersion: weir.dev/v1alpha1
kind: WeirConfiguration
nodeName: %s
discovery: {kubernetes: {kubeconfig: %s}}
interfaces: [{name: eth0}]
conntrack: {path: %s/conntrack, maxFlows: 65536}
admin: {socket: %s}
stateDir: %s/state
announce:
  speaker: bgp
  asn: %d
  peers: [{address: %s, asn: %d}]
  prefixes: [%s]
  settleSeconds: 0
`, nodeName(i), b.kubeconfig(), dir, b.socket(i), dir, router.NodeASN, netlab.Host4(netlab.FleetNet, netlab.FleetRouter), router.ASN, pool()))
		d := b.daemon(n, b.weir, "run", "--config", config)
		b.until(d, "weir run", func(ctx context.Context) error {
			s, err := api.NewClient(b.socket(i)).Status(ctx)
			if err == nil && !s.Synced {
				err = errors.New("not synced")
			}
			if err == nil {
				version = s.Version
			}
			return err
		})
	}
	return version
}

func (b *bed) socket(i int) string { return b.path(nodeName(i), "weir.sock") }

// pool are the load balancer addresses.
func pool() netip.Prefix { return netip.PrefixFrom(netlab.Host4(netlab.LBNet, 0), 24) }

func (b *bed) startController() {
	b.t.Helper()
	pools := b.write("pools.yaml", fmt.Sprintf(`apiVersion: metallb.io/v1beta1
kind: IPAddressPool
metadata: {name: public, namespace: metallb-system}
spec: {addresses: [%s], avoidBuggyIPs: true}
`, pool()))
	b.daemon(b.Server, b.weir, "controller", "--default-class", "--lease", "", "--kubeconfig", b.kubeconfig(), "--pools", pools)
}

// healthy asks a health endpoint of a node until it answers 200.
func healthy(n *netlab.Namespace, url string) func(context.Context) error {
	c := http.Client{Transport: &http.Transport{DialContext: n.DialContext, DisableKeepAlives: true}}
	return func(ctx context.Context) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return err
		}
		res, err := c.Do(req)
		if err != nil {
			return err
		}
		defer res.Body.Close()
		if res.StatusCode != http.StatusOK {
			return errors.New(res.Status)
		}
		return nil
	}
}

// run runs a command in a namespace, and fails the test if it fails.
func (b *bed) run(n *netlab.Namespace, stdin, program string, args ...string) {
	b.t.Helper()
	cmd := exec.Command(program, args...)
	cmd.Stdin = strings.NewReader(stdin)
	d, err := n.StartDaemon(cmd, b.path(n.Name()+"-"+program+".log"))
	must(b.t, err)
	if err := d.Err(); err != nil {
		b.t.Fatalf("%s %s: %v\n%s", program, strings.Join(args, " "), err, d.LogTail(20))
	}
}
