package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/weirlb/weir/discovery/kube/kubetest"
	"github.com/weirlb/weir/perf/netlab"
	"github.com/weirlb/weir/perf/netlab/labtest"
	"github.com/weirlb/weir/perf/netlab/patience"
	"github.com/weirlb/weir/perf/netlab/workload"
)

// echoPort is where Pods echo.
const echoPort = 8081

// takeoverDrain is how long connections may take to finish when Weir ends.
const takeoverDrain = 5 * time.Second

// TestKubeWireTakeoverFromKubeProxy follows deploy/REPLACE-NODEPORT.md on a node that the real
// kube-proxy serves, in the modes that every kernel has.
func TestKubeWireTakeoverFromKubeProxy(t *testing.T) {
	for _, mode := range []string{"iptables", "nftables"} {
		t.Run(mode, func(t *testing.T) { takeover(t, mode) })
	}
}

// TestGuestTakeoverFromKubeProxy is the same in mode ipvs, which needs a kernel with IPVS.
func TestGuestTakeoverFromKubeProxy(t *testing.T) { takeover(t, "ipvs") }

func takeover(t *testing.T, mode string) {
	if os.Getenv("KUBEPROXY_BIN") == "" {
		labtest.Skip(t, "KUBEPROXY_BIN is not set: run make test-kube, which builds kube-proxy")
	}
	f := newFixture(t, kubetest.Options{})
	f.forwardAll()
	f.drainFor(takeoverDrain)
	pods := []*pod{f.runPod("here", "edge-1", "web", 101), f.runPod("near", "node-a", "web", 102), f.runPod("far", "node-b", "web", 103)}
	web, echo := f.web("web"), f.echoes(pods)
	f.kubeProxy(mode, "--nodeport-addresses="+netip.PrefixFrom(netlab.Host4(netlab.ClientNet, 0), 24).String())
	f.reaches("kube-proxy serves", web, names(pods)...)
	kept := f.keptEcho(echo)
	f.comparesWell("before Weir", false)
	f.pings(kept, "kube-proxy's connection before Weir")

	stop := f.asksAlways(web)
	f.start()
	f.reaches("beside kube-proxy", web, names(pods)...)
	f.pings(kept, "kube-proxy's connection beside Weir")
	own := f.dialEcho(echo)
	if s, err := f.admin.Status(t.Context()); err != nil || s.Flows.Current == 0 {
		t.Errorf("Weir has no flow, although it serves: %+v, %v", s, err)
	}
	f.comparesWell("beside kube-proxy", true)
	own.Close()
	f.isAttached(true)

	if err := f.weir.Stop(kubetest.Within); err != nil {
		t.Errorf("weir run ended with %v", err)
	}
	f.weir = nil
	f.isGone()
	f.reaches("kube-proxy serves again", web, names(pods)...)
	f.pings(kept, "kube-proxy's connection after Weir")
	f.comparesWell("after Weir", false)
	stop("kube-proxy, Weir beside it, and kube-proxy again")

	f.start()
	f.reaches("beside kube-proxy once more", web, names(pods)...)
	f.kill(f.weir)
	f.weir = nil
	f.reaches("kube-proxy serves after a kill", web, names(pods)...)
	f.pings(kept, "kube-proxy's connection after a kill")
	f.isAttached(true) // the program outlives the process
	f.cleanup()
	f.isGone()
	f.reaches("kube-proxy serves after weir cleanup", web, names(pods)...)
}

// forwardAll has the edge node forward between all interfaces, as each node of a cluster does.
func (f *fixture) forwardAll() {
	f.t.Helper()
	for _, key := range []string{"net/ipv4/ip_forward", "net/ipv4/conf/eth0/forwarding", "net/ipv4/conf/eth1/forwarding"} {
		if err := f.Edge.Edge.SetSysctl(key, "1"); err != nil {
			f.t.Fatal(err)
		}
	}
}

// drainFor lets connections finish when Weir ends.
func (f *fixture) drainFor(d time.Duration) {
	f.t.Helper()
	text, err := os.ReadFile(f.path("config.yaml"))
	if err == nil {
		changed := strings.Replace(string(text), "timeoutSeconds: 0}", fmt.Sprintf("timeoutSeconds: %.0f}", d.Seconds()), 1)
		err = os.WriteFile(f.path("config.yaml"), []byte(changed), 0o644)
	}
	if err != nil {
		f.t.Fatal(err)
	}
}

// echoes makes a Service of echo servers at the Pods.
func (f *fixture) echoes(pods []*pod) netip.AddrPort {
	f.t.Helper()
	f.serveEchoes(pods)
	svc := f.Service("echo", func(s *corev1.Service) {
		s.Spec.Selector = map[string]string{"app": "web"}
		s.Spec.Ports[0].TargetPort = intstr.FromInt32(echoPort)
	})
	return netip.AddrPortFrom(netlab.Host4(netlab.ClientNet, 1), uint16(svc.Spec.Ports[0].NodePort))
}

// serveEchoes starts an echo server at each Pod.
func (f *fixture) serveEchoes(pods []*pod) {
	f.t.Helper()
	for _, p := range pods {
		e, err := workload.ServeEcho(places[p.node].namespace(f), p.name, netip.AddrPortFrom(p.addr, echoPort).String())
		if err != nil {
			f.t.Fatal(err)
		}
		f.OnClose(e.Close)
	}
}

// dialEcho opens a connection to an echo server, as soon as the node serves it.
func (f *fixture) dialEcho(to netip.AddrPort) (c net.Conn) {
	f.t.Helper()
	f.Eventually("a connection", func(ctx context.Context) (err error) {
		if c, err = f.Edge.Client.DialContext(ctx, "tcp", to.String()); err != nil {
			return err
		}
		if err = workload.PingPong(c, "first", patience.For(2*time.Second)); err != nil {
			c.Close()
		}
		return err
	})
	f.t.Cleanup(func() { c.Close() })
	return c
}

// keptEcho is a connection that kube-proxy keeps: while it starts, one in mode ipvs may end on a
// slow machine, without Weir.
func (f *fixture) keptEcho(to netip.AddrPort) (c net.Conn) {
	f.t.Helper()
	f.Eventually("a connection that kube-proxy keeps", func(context.Context) error {
		c = f.dialEcho(to)
		time.Sleep(patience.For(time.Second))
		return workload.PingPong(c, "later", patience.For(2*time.Second))
	})
	return c
}

func (f *fixture) pings(c net.Conn, what string) {
	f.t.Helper()
	if err := workload.PingPong(c, what, kubetest.Within); err != nil {
		f.t.Errorf("%s: %v", what, err)
	}
}

// asksAlways makes a new connection after another, by two clients, until stop, which fails the
// test if any of them had no answer.
func (f *fixture) asksAlways(target netip.AddrPort) (stop func(what string)) {
	ctx, cancel := context.WithCancel(f.t.Context())
	records, done := []*workload.Record{{}, {}}, make(chan error)
	for _, record := range records {
		l := f.load(target)
		l.Concurrency, l.Pause, l.Timeout = 1, 20*time.Millisecond, patience.For(10*time.Second)
		l.Record = func() *workload.Record { return record }
		go func() {
			_, err := l.Run(ctx)
			done <- err
		}()
	}
	return func(what string) {
		f.t.Helper()
		for _, record := range records { // a connection that waits for its answer counts, too
			n := record.Requests()
			f.Eventually("an answer", func(context.Context) error {
				if record.Requests() == n {
					return errors.New("none")
				}
				return nil
			})
		}
		cancel()
		for _, record := range records {
			if err := errors.Join(<-done, record.Err()); err != nil {
				f.t.Errorf("%s: %v", what, err)
			}
			f.t.Logf("%s: %d connections, p99 %v", what, record.Requests(), record.Percentile(99))
		}
	}
}

// comparesWell checks that weir doctor finds no fault, and the endpoints of kube-proxy those
// that Weir would choose.
func (f *fixture) comparesWell(when string, running bool) {
	f.t.Helper()
	for _, args := range [][]string{{"--shadow"}, nil} {
		f.Eventually("weir doctor "+when, func(context.Context) error {
			r, exit, err := f.examine(args...)
			if err == nil && (exit != 0 || r.Running != running || len(r.KubeProxy) != 1) {
				err = fmt.Errorf("exit status %d: %+v", exit, r)
			}
			return err
		})
	}
}

// isGone checks that neither programs nor interfaces of Weir are left on the node.
func (f *fixture) isGone() {
	f.t.Helper()
	if _, err := f.Edge.Edge.Interface("weir-host"); err == nil {
		f.t.Error("weir-host is left")
	}
	f.isAttached(false)
}

// isAttached checks that the interfaces have a program at a hook, or that none has.
func (f *fixture) isAttached(want bool) {
	f.t.Helper()
	for _, name := range []string{"eth0", "eth1"} {
		l, err := f.Edge.Edge.Interface(name)
		if err != nil {
			f.t.Fatal(err)
		}
		x := l.Attrs().Xdp
		has := x != nil && x.Attached
		err = f.Edge.Edge.Do(func() error {
			at, err := link.QueryPrograms(link.QueryOptions{Target: l.Attrs().Index, Attach: ebpf.AttachTCXIngress})
			if errors.Is(err, ebpf.ErrNotSupported) || errors.Is(err, unix.EINVAL) { // before Linux 6.6
				return nil
			}
			has = has || err == nil && len(at.Programs) > 0
			return err
		})
		if err != nil {
			f.t.Fatal(err)
		}
		if has != want {
			f.t.Errorf("%s has a program: %v, want %v", name, has, want)
		}
	}
}

// cleanup runs `weir cleanup`.
func (f *fixture) cleanup() {
	f.t.Helper()
	var out strings.Builder
	cmd := exec.Command(f.binary, "cleanup", "--config", f.path("config.yaml"))
	cmd.Stdout, cmd.Stderr = &out, &out
	p, err := f.Edge.Edge.Start(cmd)
	if err != nil {
		f.t.Fatal(err)
	}
	if exit := p.ExitCode(); exit != 0 {
		f.t.Errorf("weir cleanup: exit status %d: %s", exit, out.String())
	}
}
