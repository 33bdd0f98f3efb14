package e2e

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"github.com/weirlb/weir/perf/netlab"
	"github.com/weirlb/weir/perf/netlab/patience"
	"github.com/weirlb/weir/perf/netlab/workload"
)

// modeService is a Service with a forwarding mode of its own. Its endpoint
// listens on the Service's own ports, which not every mode translates.
type modeService struct {
	mode  string
	index uint8
	at    endpoint
	cross bool // endpoints of IPv4 alone, addresses of both families
	clamp bool // the endpoint announces segments that fit the tunnel
}

// Services of the modes without translation: the endpoint has the load balancer
// address.
var directServices = []modeService{
	{"l2dsr", 51, attached, false, false},
	{"ipip", 52, routed, false, false},
	{"gue", 53, routed, false, false},
	{"ipip", 54, routed, true, false},
	{"gue", 55, routed, true, false},
	{"gue", 56, attached, false, true},
}

// backNet is the network by which answers go straight from the fabric to clients.
const backNet = 77

// directPorts are those of directServices, as in a manifest.
var directPorts = []string{
	fmt.Sprintf("{name: http, protocol: TCP, port: %d}", httpTarget),
	fmt.Sprintf("{name: echo, protocol: UDP, port: %d}", echoTarget),
}

func modeManifests(services []modeService, ports []string) string {
	var b strings.Builder
	list := strings.Join(ports, ", ")
	for _, s := range services {
		name := fmt.Sprintf("%s-%d", s.mode, s.index)
		fmt.Fprintf(&b, `---
apiVersion: v1
kind: Service
metadata: {namespace: default, name: %s, annotations: {weir.dev/forwarding-mode: %s}}
spec:
  type: LoadBalancer
  allocateLoadBalancerNodePorts: false
  ports: [%s]
status: {loadBalancer: {ingress: [{ip: %s}, {ip: "%s"}]}}
`, name, s.mode, list, netlab.Host4(netlab.LBNet, s.index), netlab.Host6(netlab.LBNet, s.index))
		for _, six := range []bool{false, true} {
			if six && s.cross {
				continue
			}
			fmt.Fprintf(&b, `---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {namespace: default, name: %s-%v, labels: {kubernetes.io/service-name: %s}}
addressType: %s
ports: [%s]
endpoints: [{addresses: ["%s"], conditions: {ready: true}, nodeName: %s}]
`, name, six, name, family(six), list, s.at.addr(six), s.at.node)
		}
	}
	return b.String()
}

// newDirectFixture has the servers of directServices behind Weir, and the short
// way back. Other Services are served beside them.
func newDirectFixture(t *testing.T, beside ...service) *fixture {
	t.Helper()
	f := ownFixture(t, options{
		stopped: true, services: beside, frontends: len(directServices)*4 + len(beside)*16,
		extra: "metricsBindAddress: 127.0.0.1:9464",
	})
	if err := f.addReturnLink(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(f.path("manifests/direct.yaml"), []byte(modeManifests(directServices, directPorts)), 0o644); err != nil {
		t.Fatal(err)
	}
	f.decapsulate(t)
	if err := f.start(); err != nil {
		t.Fatal(err)
	}
	return f
}

// decapsulate has the servers of directServices behind the addresses of the Services, until the test ends or
// undo is called.
func (f *fixture) decapsulate(t *testing.T) (undo func()) {
	t.Helper()
	var tunnelled, clamped []string
	for _, s := range directServices {
		if s.clamp {
			clamped = append(clamped, netlab.Host4(netlab.LBNet, s.index).String(), netlab.Host6(netlab.LBNet, s.index).String())
			continue
		}
		if s.mode != "l2dsr" {
			tunnelled = append(tunnelled, netlab.Host4(netlab.LBNet, s.index).String(), netlab.Host6(netlab.LBNet, s.index).String())
			continue
		}
		for _, a := range []netip.Addr{netlab.Host4(netlab.LBNet, s.index), netlab.Host6(netlab.LBNet, s.index)} {
			if err := f.ZoneA.AddAddr("lo", netip.PrefixFrom(a, a.BitLen())); err != nil {
				t.Fatal(err)
			}
			f.serveDirect(t, f.ZoneA, a)
		}
	}
	var decaps []*netlab.Process
	for n, addrs := range map[*netlab.Namespace][]string{f.ZoneB: tunnelled, f.ZoneA: clamped} {
		mss := "0"
		if n == f.ZoneA {
			mss = "1300"
		}
		decaps = append(decaps, f.startDecap(t, n, "--address", strings.Join(addrs, ","), "--mss", mss))
		for _, text := range addrs {
			f.serveDirect(t, n, netip.MustParseAddr(text))
		}
	}
	return func() {
		for _, p := range decaps {
			must(t, p.Stop(within))
		}
	}
}

// addReturnLink joins the fabric and the client by another link, for answers.
func (f *fixture) addReturnLink() error {
	prefixes := func(host uint8) []netip.Prefix {
		return []netip.Prefix{netip.PrefixFrom(netlab.Host4(backNet, host), 24), netip.PrefixFrom(netlab.Host6(backNet, host), 64)}
	}
	err := netlab.Connect(netlab.End{Namespace: f.Client, Name: "back", Addrs: prefixes(2)},
		netlab.End{Namespace: f.Fabric, Name: "back", Addrs: prefixes(254)}, netlab.LinkConfig{})
	for _, step := range []func() error{
		func() error {
			return f.Fabric.AddRoute("back", netip.PrefixFrom(netlab.Host4(netlab.ClientNet, 0), 24), netlab.Host4(backNet, 2))
		},
		func() error {
			return f.Fabric.AddRoute("back", netip.PrefixFrom(netlab.Host6(netlab.ClientNet, 0), 64), netlab.Host6(backNet, 2))
		},
		func() error { return f.Client.SetSysctl("net/ipv4/conf/all/rp_filter", "0") },
		func() error { return f.Client.SetSysctl("net/ipv4/conf/back/rp_filter", "0") },
	} {
		if err == nil {
			err = step()
		}
	}
	return err
}

func (f *fixture) serveDirect(t *testing.T, n *netlab.Namespace, a netip.Addr) {
	t.Helper()
	web, err := workload.Serve(n, n.Name(), netip.AddrPortFrom(a, httpTarget).String())
	if err != nil {
		t.Fatal(err)
	}
	f.OnClose(web.Close)
	echo, err := workload.ServeEcho(n, n.Name(), netip.AddrPortFrom(a, echoTarget).String())
	if err != nil {
		t.Fatal(err)
	}
	f.OnClose(echo.Close)
}

// startDecap runs `weir decap` on an endpoint's node until the test ends, and
// then looks at what it leaves.
func (f *fixture) startDecap(t *testing.T, n *netlab.Namespace, args ...string) *netlab.Process {
	t.Helper()
	cmd := f.command(append([]string{"decap", "--from",
		netlab.Host4(netlab.FabricNet, 1).String() + "," + netlab.Host6(netlab.FabricNet, 1).String()}, args...)...)
	file := f.path("decap-" + n.Name() + ".log")
	log, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	p, err := n.Start(cmd)
	if err != nil {
		t.Fatal(err)
	}
	said := func() string { b, _ := os.ReadFile(file); return string(b) }
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("weir decap said:\n%s", said())
		}
	})
	for deadline := time.Now().Add(within); !strings.Contains(said(), "ready"); time.Sleep(20 * time.Millisecond) {
		select {
		case <-p.Done():
			t.Fatalf("weir decap has ended (%v): %s", p.Err(), said())
		default:
		}
		if time.Now().After(deadline) {
			t.Fatalf("weir decap is not ready: %s", said())
		}
	}
	t.Cleanup(func() {
		if err := p.Stop(within); err != nil {
			t.Errorf("weir decap: %v", err)
		}
		if !strings.Contains(said(), "weir decap: delivered ") || strings.Contains(said(), "malformed") {
			t.Errorf("weir decap said: %s", said())
		}
		if v, err := n.Sysctl("net/ipv4/conf/all/arp_ignore"); err != nil || v != "0" {
			t.Errorf("arp_ignore is %q afterwards, %v", v, err)
		}
		if _, err := n.Interface("weir-decap"); err == nil {
			t.Error("the device is still there")
		}
	})
	return p
}

// Real TCP and UDP through every mode: requests by Weir, in full-sized segments
// that do not fit a tunnel until the client has been told, answers straight.
func TestWireDirectServerReturn(t *testing.T) {
	f := newDirectFixture(t)
	f.checkChecksums(t)
	for _, s := range directServices {
		name := s.mode
		switch {
		case s.cross:
			name += " to IPv4"
		case s.clamp:
			name += " with small segments"
		}
		t.Run(name, func(t *testing.T) {
			bothFamilies(t, func(t *testing.T, six bool) {
				addr := netlab.Host4(netlab.LBNet, s.index)
				if six {
					addr = netlab.Host6(netlab.LBNet, s.index)
				}
				through, err := netlab.NewCapture(f.Client, "eth0")
				if err != nil {
					t.Fatal(err)
				}
				before := f.tooLarge(t)
				f.directTransfers(t, addr)
				if n := f.tooLarge(t) - before; s.clamp && n != 0 {
					t.Errorf("%d packets were too large", n)
				}
				sent, answered := framesOf(through, addr.AsSlice())
				if sent == 0 || answered != 0 {
					t.Errorf("%d frames to Weir, %d answers by Weir's network", sent, answered)
				}
				if t.Failed() {
					t.Log(f.whatWasDropped())
				}
			})
		})
	}
	f.checkModes(t)
}

// tooLarge is how many packets did not fit so far.
func (f *fixture) tooLarge(t *testing.T) uint64 {
	t.Helper()
	s, err := f.admin.Status(inTime(t, within))
	if err != nil {
		t.Fatal(err)
	}
	return s.Drops["larger-than-mtu"]
}

func (f *fixture) directTransfers(t *testing.T, addr netip.Addr) {
	t.Helper()
	transfer := &workload.Transfer{Namespace: f.Client, Target: netip.AddrPortFrom(addr, httpTarget), Bytes: size(8<<20, 2<<20)}
	for name, move := range map[string]func(context.Context) error{"download": transfer.Download, "upload": transfer.Upload} {
		if err := move(inTime(t, patience.For(30*time.Second))); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	c, err := f.Client.DialContext(inTime(t, within), "udp", netip.AddrPortFrom(addr, echoTarget).String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	r, err := workload.CheckEcho(c, 1000, 1400, patience.For(2*time.Second))
	if err != nil || r.Corrupt > 0 || r.Lost > 0 {
		t.Errorf("echo: %+v, %v", r, err)
	}
}

// framesOf counts the frames of a capture to and from an address, but for ICMP.
func framesOf(c *netlab.Capture, addr net.IP) (to, from int) {
	frames, _ := c.Stop()
	for _, f := range frames {
		pkt := gopacket.NewPacket(f, layers.LayerTypeEthernet, gopacket.NoCopy)
		if n := pkt.NetworkLayer(); n != nil && pkt.TransportLayer() != nil {
			if src, dst := n.NetworkFlow().Endpoints(); net.IP(dst.Raw()).Equal(addr) {
				to++
			} else if net.IP(src.Raw()).Equal(addr) {
				from++
			}
		}
	}
	return to, from
}

// checkModes looks at what status says.
func (f *fixture) checkModes(t *testing.T) {
	t.Helper()
	list, err := f.admin.Frontends(inTime(t, within))
	if err != nil {
		t.Fatal(err)
	}
	for _, fe := range list.Frontends {
		if want, _, _ := strings.Cut(strings.TrimPrefix(fe.Service, "default/"), "-"); fe.Mode != want {
			t.Errorf("frontend %s of %s has mode %q", fe.Address, fe.Service, fe.Mode)
		}
	}
	if f.tooLarge(t) == 0 {
		t.Error("no client was told that its packets are too large")
	}
}
