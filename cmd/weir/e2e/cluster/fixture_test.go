package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/discovery/kube/kubetest"
	"github.com/weirlb/weir/perf/netlab"
	"github.com/weirlb/weir/perf/netlab/labtest"
	"github.com/weirlb/weir/perf/netlab/patience"
	"github.com/weirlb/weir/perf/netlab/weirtest"
	"github.com/weirlb/weir/perf/netlab/workload"
)

// targetPort is where every Pod listens.
const targetPort = 8080

func TestMain(m *testing.M) {
	// An emulated machine is slower than a busy one.
	kubetest.Within = max(kubetest.Within, patience.For(20*time.Second))
	kubetest.StartWithin = max(kubetest.StartWithin, patience.For(40*time.Second))
	weirtest.Main(m)
}

// fixture is the standard lab, whose edge node is a node of a real cluster.
type fixture struct {
	*netlab.Edge
	cluster *kubetest.Cluster
	*kubetest.Site
	admin  *api.Client
	binary string
	weir   *netlab.Daemon
	runs   int
	t      *testing.T
	// silent makes connections to the API server get no answer, held those
	// that did not.
	silent atomic.Bool
	held   atomic.Int32
	hungUp sync.Map // the connections that get no answer
	// announcedSince is since when the address of announced is, zero before the first call.
	announcedSince time.Time
}

func newFixture(t *testing.T, o kubetest.Options) *fixture {
	t.Helper()
	labtest.Require(t)
	c := kubetest.Require(t, o)
	file := weirtest.Binary(t)
	lab, err := netlab.NewEdge(netlab.EdgeConfig{})
	if err != nil {
		t.Fatal(err)
	}
	f := &fixture{Edge: lab, binary: file, cluster: c, Site: kubetest.NewSite(t, c.Client(t)), t: t}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("weir run said:\n%s", f.logTail())
		}
		if err := lab.Close(); err != nil {
			t.Error(err)
		}
	})
	f.admin = api.NewClient(f.path("weir.sock"))
	f.forwardAPIServer()
	f.configure()
	f.Node("edge-1", "zone-a", netlab.Host4(netlab.FabricNet, 1))
	f.Node("node-a", "zone-a", netlab.Host4(netlab.FabricNet, 11))
	f.Node("node-b", "zone-b", netlab.Host4(netlab.ZoneBNet, 12))
	return f
}

func (f *fixture) path(name string) string { return filepath.Join(f.Dir(), name) }

// forwardAPIServer lets the edge node reach the API server, which listens on
// the loopback of another namespace, at the same address.
func (f *fixture) forwardAPIServer() {
	addr := "127.0.0.1:" + f.cluster.Port()
	_, err := f.Forward(f.Edge.Edge, addr, func(in net.Conn) (net.Conn, error) {
		if f.silent.Load() {
			f.held.Add(1)
			f.hungUp.Store(in, true)
			_, _ = io.Copy(io.Discard, in) // until the other side gives up
			f.held.Add(-1)
			return nil, net.ErrClosed
		}
		return net.Dial("tcp", addr)
	})
	if err != nil {
		f.t.Fatal(err)
	}
}

// speak ends the silence, of connections that there are too.
func (f *fixture) speak() {
	f.silent.Store(false)
	f.hungUp.Range(func(c, _ any) bool {
		c.(net.Conn).Close()
		return true
	})
}

func (f *fixture) configure() {
	text := fmt.Sprintf(`apiVersion: weir.dev/v1alpha1
kind: WeirConfiguration
nodeName: edge-1
discovery:
  kubernetes: {kubeconfig: %s}
interfaces: [{name: eth0}, {name: eth1}]
nodePortAddresses: ["%s/24"]
conntrack: {path: %s, maxFlows: 262144}
admin: {socket: %s}
drain: {notReadySeconds: 0, timeoutSeconds: 0}
stateDir: %s
metricsBindAddress: 127.0.0.1:9464
`, f.cluster.Kubeconfig, netlab.Host4(netlab.ClientNet, 0), f.path("conntrack"), f.path("weir.sock"), f.path("state"))
	if err := os.WriteFile(f.path("config.yaml"), []byte(text), 0o644); err != nil {
		f.t.Fatal(err)
	}
}

// start starts `weir run` and waits until it serves.
func (f *fixture) start() {
	f.t.Helper()
	f.runs++
	var err error
	f.weir, err = f.Edge.Edge.StartDaemon(exec.Command(f.binary, "run", "--config", f.path("config.yaml")), f.path(fmt.Sprintf("weir-%d.log", f.runs)))
	if err != nil {
		f.t.Fatal(err)
	}
	f.Eventually("weir run serves", func(ctx context.Context) error {
		if err := f.ended(); err != nil {
			return err
		}
		s, err := f.admin.Status(ctx)
		if err != nil {
			return err
		}
		if !s.Synced {
			return errors.New("not synced")
		}
		return nil
	})
}

func (f *fixture) ended() error {
	if f.weir == nil {
		return nil // none is to run
	}
	select {
	case <-f.weir.Done():
		f.t.Fatalf("weir run has ended: %v", f.weir.Err())
	default:
	}
	return nil
}

func (f *fixture) logTail() string {
	if f.weir == nil {
		return ""
	}
	return f.weir.LogTail(40)
}

// pod is a Pod with a web server at its address that answers with its name.
type pod struct {
	name, node, app string
	addr            netip.Addr
	server          *workload.Server
}

// places of Pods: the node, the namespace, and the interface there.
var places = map[string]struct {
	namespace func(*fixture) *netlab.Namespace
	ifname    string
	net       uint8
}{
	"edge-1": {func(f *fixture) *netlab.Namespace { return f.Edge.Pod }, "eth0", netlab.PodNet},
	"node-a": {func(f *fixture) *netlab.Namespace { return f.ZoneA }, "eth0", netlab.FabricNet},
	"node-b": {func(f *fixture) *netlab.Namespace { return f.ZoneB }, "eth0", netlab.ZoneBNet},
}

// runPod runs a Pod and its server; its address is number host of the node's
// network.
func (f *fixture) runPod(name, node, app string, host uint8) *pod {
	f.t.Helper()
	at := places[node]
	p := &pod{name: name, node: node, app: app, addr: netlab.Host4(at.net, host)}
	ns := at.namespace(f)
	if err := ns.AddAddr(at.ifname, netip.PrefixFrom(p.addr, 24)); err != nil {
		f.t.Fatal(err)
	}
	var err error
	if p.server, err = workload.Serve(ns, name, netip.AddrPortFrom(p.addr, targetPort).String()); err != nil {
		f.t.Fatal(err)
	}
	f.OnClose(p.server.Close)
	f.RunPod(kubetest.PodSpec{Name: name, Node: node, Labels: map[string]string{"app": app}, Addresses: []netip.Addr{p.addr}})
	return p
}

// web makes a NodePort Service of the Pods of that app.
func (f *fixture) web(app string) netip.AddrPort {
	f.t.Helper()
	svc := f.Service(app, func(s *corev1.Service) { s.Spec.Ports[0].TargetPort = intstr.FromInt32(targetPort) })
	return netip.AddrPortFrom(netlab.Host4(netlab.ClientNet, 1), uint16(svc.Spec.Ports[0].NodePort))
}

// load is clients' requests, each over a connection of its own.
func (f *fixture) load(target netip.AddrPort) *workload.Load {
	return &workload.Load{Namespace: f.Edge.Client, Targets: []netip.AddrPort{target}, Concurrency: 4, ServerCloses: true}
}

// reaches waits until connections reach exactly these Pods.
func (f *fixture) reaches(what string, target netip.AddrPort, want ...string) {
	f.t.Helper()
	f.Eventually(what, func(ctx context.Context) error {
		if err := f.ended(); err != nil {
			return err
		}
		l := f.load(target)
		l.Requests, l.Timeout = 24*max(1, len(want)), patience.For(2*time.Second)
		r, err := l.Run(ctx)
		if err != nil {
			return err
		}
		if err := r.Err(); err != nil && len(want) > 0 {
			return err
		}
		got := r.Servers()
		for _, name := range want {
			if got[name] == 0 {
				return fmt.Errorf("answers came from %v, none from %s", got, name)
			}
		}
		if len(got) != len(want) {
			return fmt.Errorf("answers came from %v, want %v", got, want)
		}
		return nil
	})
}
