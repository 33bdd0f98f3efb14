package cluster

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/weirlb/weir/discovery/kube/kubetest"
	"github.com/weirlb/weir/perf/netlab"
	"github.com/weirlb/weir/perf/netlab/labtest"
	"github.com/weirlb/weir/perf/netlab/router"
)

// The pool of MetalLB is part of the client's network.
var (
	metalFirst = netlab.Host4(netlab.ClientNet, 200)
	metalLast  = netlab.Host4(netlab.ClientNet, 201)
)

// TestKubeWireTakeoverFromMetalLB follows deploy/REPLACE-METALLB.md, layer 2, forth and back, with MetalLB's real speaker
// and controller. A client with the address in its cache loses no connection.
func TestKubeWireTakeoverFromMetalLB(t *testing.T) {
	if os.Getenv("METALLB_BIN") == "" {
		labtest.Skip(t, "METALLB_BIN is not set: run make test-kube, which builds MetalLB")
	}
	f := newFixture(t, kubetest.Options{})
	f.metalLBObjects(metalFirst, metalLast, `kind: L2Advertisement
metadata: {namespace: metallb-system, name: lan}
spec: {ipAddressPools: [lan], interfaces: [eth0], nodeSelectors: [{matchLabels: {kubernetes.io/hostname: edge-1}}]}
`)
	pods := []*pod{f.runPod("near", "node-a", "web", 101), f.runPod("far", "node-b", "web", 102)}
	f.serveEchoes(pods)
	controller := f.metalLB("controller", "--disable-cert-rotation", "--webhook-mode=disabled", "--port=0", "--health-probe-port=0")
	web := f.balanced("web")
	speaker := f.metalLB("speaker", "--node-name=edge-1", "--port=0", "--health-probe-port=0")
	f.answersARP("MetalLB's speaker", web.Addr())

	t.Log("1. Weir serves, with announce off")
	f.start()
	f.reaches("beside MetalLB's speaker", web, names(pods)...)
	stop := f.asksAlways(web)
	kept := f.dialEcho(netip.AddrPortFrom(web.Addr(), echoPort))

	t.Log("2. the configuration, 3. the speaker ends, and Weir starts again")
	plain := f.announces("l2: {interfaces: [eth0]}")
	f.kill(speaker)
	f.startAgain()
	f.owns(web.Addr())
	f.reaches("after Weir has taken the address", web, names(pods)...)
	f.pings(kept, "a connection from before")
	stop("from MetalLB to Weir")
	f.answersARP("Weir", web.Addr())

	t.Log("4. weir controller in place of MetalLB's")
	f.kill(controller)
	own := f.weirController()
	f.reaches("under weir controller", web, names(pods)...)
	if other := f.balanced("other"); other == web || other.Addr() != metalLast {
		t.Errorf("weir controller gives another Service %v, want %v", other, metalLast)
	}
	if now := f.addressOf("web"); now != web.Addr() {
		t.Errorf("the address of the Service is %v, was %v", now, web.Addr())
	}
	f.kill(own)

	t.Log("back: Weir gives the address up, and MetalLB's speaker starts")
	f.rewrite(plain)
	f.startAgain()
	f.metalLB("speaker", "--node-name=edge-1", "--port=0", "--health-probe-port=0")
	f.answersARP("MetalLB's speaker again", web.Addr())
	f.reaches("beside MetalLB's speaker again", web, names(pods)...)
}

// The same for BGP: the client is a router, FRR, to which MetalLB's speaker, or Weir, announces an address that it has no
// other route for. With a single node the route goes meanwhile; a connection from before outlives that.
func TestKubeWireTakeoverFromMetalLBByBGP(t *testing.T) {
	if os.Getenv("METALLB_BIN") == "" {
		labtest.Skip(t, "METALLB_BIN is not set: run make test-kube, which builds MetalLB")
	}
	if err := router.FRRAvailable(); err != nil {
		labtest.Skip(t, err)
	}
	f := newFixture(t, kubetest.Options{})
	first := netip.MustParseAddr("203.0.113.200")
	f.metalLBObjects(first, first.Next(), fmt.Sprintf(`kind: BGPAdvertisement
metadata: {namespace: metallb-system, name: router}
spec: {ipAddressPools: [lan]}
---
apiVersion: metallb.io/v1beta2
kind: BGPPeer
metadata: {namespace: metallb-system, name: router}
spec: {myASN: %d, peerASN: %d, peerAddress: %v}
`, router.NodeASN, router.ASN, netlab.Host4(netlab.ClientNet, 2)))
	pods := []*pod{f.runPod("near", "node-a", "web", 101), f.runPod("far", "node-b", "web", 102)}
	f.serveEchoes(pods)
	frr, err := router.StartFRR(f.Edge.Client, f.path(""), router.FRR(router.Neighbors{Addresses: []netip.Addr{netlab.Host4(netlab.ClientNet, 1)}}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(frr.Log())
		}
	})
	f.metalLB("controller", "--disable-cert-rotation", "--webhook-mode=disabled", "--port=0", "--health-probe-port=0")
	web := f.balanced("web")
	speaker := f.metalLB("speaker", "--node-name=edge-1", "--port=0", "--health-probe-port=0")
	f.routes("MetalLB's speaker", web.Addr(), true)

	t.Log("1. Weir serves, with announce off")
	f.start()
	f.reaches("beside MetalLB's speaker", web, names(pods)...)
	kept := f.dialEcho(netip.AddrPortFrom(web.Addr(), echoPort))

	t.Log("2. the speaker ends, and Weir starts again with a session")
	f.kill(speaker)
	f.routes("nobody", web.Addr(), false)
	plain := f.announces("speaker: bgp")
	f.startAgain()
	f.routes("Weir", web.Addr(), true)
	f.reaches("after Weir has the session", web, names(pods)...)
	f.pings(kept, "a connection from before")

	t.Log("back")
	f.rewrite(plain)
	f.startAgain()
	f.routes("nobody", web.Addr(), false)
	f.metalLB("speaker", "--node-name=edge-1", "--port=0", "--health-probe-port=0")
	f.routes("MetalLB's speaker again", web.Addr(), true)
	f.reaches("beside MetalLB's speaker again", web, names(pods)...)
}

// routes waits until the client has a route for the address to the node, or none.
func (f *fixture) routes(who string, a netip.Addr, want bool) {
	f.t.Helper()
	f.Eventually(fmt.Sprintf("%s announces %v", who, a), func(context.Context) error {
		hops, err := router.NextHops(f.Edge.Client, netip.PrefixFrom(a, a.BitLen()))
		if err == nil && slices.Contains(hops, netlab.Host4(netlab.ClientNet, 1)) != want {
			err = fmt.Errorf("it goes to %v", hops)
		}
		return err
	})
}

// metalLBObjects makes the objects of MetalLB, a pool and advertisements, and lets weir check read them, as an
// administrator does.
func (f *fixture) metalLBObjects(first, last netip.Addr, advertisements string) {
	f.t.Helper()
	objects := fmt.Sprintf(`apiVersion: metallb.io/v1beta1
kind: IPAddressPool
metadata: {namespace: metallb-system, name: lan}
spec: {addresses: [%s-%s]}
---
apiVersion: metallb.io/v1beta1
%s`, first, last, advertisements)
	apply := f.cluster.Applier(f.t)
	apply.Namespace("metallb-system")
	files, err := filepath.Glob(filepath.Join(os.Getenv("METALLB_BIN"), "*.yaml"))
	if err != nil || len(files) == 0 {
		f.t.Fatal("no definitions of MetalLB", err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			f.t.Fatal(err)
		}
		apply.Definitions(string(text))
	}
	apply.All(objects)
	for _, program := range []string{"controller", "speaker"} { // each looks for its own
		apply.All(fmt.Sprintf("{apiVersion: v1, kind: Pod, metadata: {namespace: metallb-system, name: %s}, "+
			"spec: {nodeName: edge-1, containers: [{name: it, image: it}]}}\n", program))
	}
	file := f.path("pools.yaml")
	if err := os.WriteFile(file, []byte(objects), 0o644); err != nil {
		f.t.Fatal(err)
	}
	if out, err := exec.Command(f.binary, "check", "--pools", file).CombinedOutput(); err != nil {
		f.t.Errorf("weir check --pools: %v\n%s", err, out)
	}
}

// metalLB starts a program of MetalLB on the edge node.
func (f *fixture) metalLB(program string, args ...string) *netlab.Daemon {
	f.t.Helper()
	f.runs++
	cmd := exec.Command(filepath.Join(os.Getenv("METALLB_BIN"), program), append([]string{"--namespace=metallb-system", "--pod-name=" + program}, args...)...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+f.cluster.Kubeconfig)
	d, err := f.Edge.Edge.StartDaemon(cmd, f.path(fmt.Sprintf("metallb-%s-%d.log", program, f.runs)))
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() {
		if f.t.Failed() {
			f.t.Logf("MetalLB's %s said:\n%s", program, d.LogTail(20))
		}
	})
	return d
}

// balanced makes a Service of type LoadBalancer of the web servers, and waits for the address.
func (f *fixture) balanced(name string) netip.AddrPort {
	f.t.Helper()
	no := false
	f.Service(name, func(s *corev1.Service) {
		s.Spec.Type, s.Spec.AllocateLoadBalancerNodePorts = corev1.ServiceTypeLoadBalancer, &no
		s.Spec.Selector = map[string]string{"app": "web"}
		s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: "echo", Protocol: corev1.ProtocolTCP, Port: echoPort, TargetPort: intstr.FromInt32(echoPort)})
		s.Spec.Ports[0].TargetPort = intstr.FromInt32(targetPort)
	})
	var addr netip.Addr
	f.Eventually("an address of Service "+name, func(context.Context) error {
		if addr = f.addressOf(name); !addr.IsValid() {
			return errors.New("none")
		}
		return nil
	})
	return netip.AddrPortFrom(addr, 80)
}

// addressOf is the address in the status of a Service, the zero value for none.
func (f *fixture) addressOf(name string) netip.Addr {
	svc, err := f.Site.Client.CoreV1().Services(f.Namespace).Get(f.t.Context(), name, metav1.GetOptions{})
	if err != nil || len(svc.Status.LoadBalancer.Ingress) == 0 {
		return netip.Addr{}
	}
	addr, _ := netip.ParseAddr(svc.Status.LoadBalancer.Ingress[0].IP)
	return addr
}

// answersARP waits until the client, which has forgotten the address, gets an answer.
func (f *fixture) answersARP(who string, a netip.Addr) {
	f.t.Helper()
	l, err := f.Edge.Client.Interface("eth0")
	if err != nil {
		f.t.Fatal(err)
	}
	n := f.Edge.Client.Netlink()
	f.Eventually(who+" answers for "+a.String(), func(ctx context.Context) error {
		_ = n.NeighDel(&netlink.Neigh{LinkIndex: l.Attrs().Index, IP: a.AsSlice()}) // it may not be there
		if c, err := f.Edge.Client.DialContext(ctx, "udp", netip.AddrPortFrom(a, 9).String()); err == nil {
			_, _ = c.Write([]byte("?"))
			c.Close()
		}
		list, err := n.NeighList(l.Attrs().Index, netlink.FAMILY_V4)
		for _, x := range list {
			if got, _ := netip.AddrFromSlice(x.IP); got.Unmap() == a && len(x.HardwareAddr) > 0 && x.State&netlink.NUD_FAILED == 0 {
				return nil
			}
		}
		return errors.Join(errors.New("no answer"), err)
	})
}

// owns waits until the node is the owner of the address.
func (f *fixture) owns(a netip.Addr) {
	f.t.Helper()
	f.Eventually("Weir is the owner", func(ctx context.Context) error {
		s, err := f.admin.Status(ctx)
		if err != nil || s.Announce == nil {
			return errors.Join(errors.New("no announcements"), err)
		}
		for _, x := range s.Announce.Addresses {
			if x.Address == a && x.L2 != nil && x.L2.State == "owner" {
				return nil
			}
		}
		return fmt.Errorf("it is not: %+v", s.Announce.Addresses)
	})
}

// announces has the next start of Weir announce addresses by MetalLB's objects, and returns the configuration of before.
func (f *fixture) announces(how string) (before []byte) {
	f.t.Helper()
	before, err := os.ReadFile(f.path("config.yaml"))
	if err != nil {
		f.t.Fatal(err)
	}
	f.rewrite(append(before[:len(before):len(before)], "announce: {objectNamespaces: [metallb-system], "+how+"}\n"...))
	return before
}

func (f *fixture) rewrite(text []byte) {
	f.t.Helper()
	if err := os.WriteFile(f.path("config.yaml"), text, 0o644); err != nil {
		f.t.Fatal(err)
	}
}

// startAgain ends Weir for a restart, and starts it.
func (f *fixture) startAgain() {
	f.t.Helper()
	if err := f.weir.Signal(syscall.SIGUSR2); err != nil {
		f.t.Fatal(err)
	}
	select {
	case <-f.weir.Done():
	case <-time.After(kubetest.Within):
		f.t.Fatal("weir does not end")
	}
	f.start()
}

// weirController starts weir controller on the edge node.
func (f *fixture) weirController() *netlab.Daemon {
	f.t.Helper()
	cmd := exec.Command(f.binary, strings.Fields("controller --default-class --kubeconfig "+f.cluster.Kubeconfig)...)
	d, err := f.Edge.Edge.StartDaemon(cmd, f.path("controller.log"))
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() {
		if f.t.Failed() {
			f.t.Logf("weir controller said:\n%s", d.LogTail(20))
		}
	})
	return d
}
