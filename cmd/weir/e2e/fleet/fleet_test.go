// Package fleet tests several Weirs behind a router that spreads flows over them.
package fleet

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/perf/netlab"
	"github.com/weirlb/weir/perf/netlab/labtest"
	"github.com/weirlb/weir/perf/netlab/patience"
	"github.com/weirlb/weir/perf/netlab/router"
	"github.com/weirlb/weir/perf/netlab/weirtest"
)

const port = 8080

var (
	vip4 = netip.MustParseAddr("10.99.0.10")
	vip6 = netip.MustParseAddr("fd99::10")
)

// bed is a fleet of Weirs behind FRR.
type bed struct {
	*netlab.Fleet
	t     *testing.T
	nodes []*node
	// speaker is announce.speaker, and the fields that go with it.
	speaker string
	// hook is more fields of the interface: with hook xdp a capture on a node has the kernel's packets alone.
	hook string
	// hosts are the endpoints, on FleetNet.
	hosts []uint8
	// annotations of the Service.
	annotations string
}

type node struct {
	*netlab.Daemon
	dir   string
	admin *api.Client
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// newBed starts FRR, a server of the endpoints and a Weir per node, with BGP sessions.
func newBed(t *testing.T, nodes int, drain string) *bed {
	t.Helper()
	return newBedOf(t, nodes, drain, bgpSessions())
}

// bfd is the field of a peer with BFD, which the router then has too.
const bfd = "bfd:"

// passwordFile is the field of a peer with a password, which is then that of the router.
const (
	passwordFile = "passwordFile:"
	password     = "the-Secret-of-the-router"
)

// newBedOf is newBed with another speaker, or further fields of announce.
func newBedOf(t *testing.T, nodes int, drain, speaker string) *bed {
	t.Helper()
	b := newRouted(t, nodes, speaker)
	b.serve()
	for i := range nodes {
		b.start(i, drain)
	}
	return b
}

// newRouted starts FRR, neither endpoints nor Weirs.
func newRouted(t *testing.T, nodes int, speaker string) *bed {
	t.Helper()
	labtest.Require(t)
	if err := router.FRRAvailable(); err != nil {
		labtest.Skip(t, err)
	}
	f, err := netlab.NewFleet(nodes)
	must(t, err)
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
	b := &bed{Fleet: f, t: t, speaker: speaker, hosts: []uint8{netlab.FleetServer}, annotations: "{}"}
	ranges := []netip.Prefix{netip.MustParsePrefix("10.60.0.0/24"), netip.MustParsePrefix("fd60::/64")}
	neighbors := router.Neighbors{Ranges: ranges}
	if strings.Contains(speaker, bfd) {
		neighbors.BFD = 300
	}
	if strings.Contains(speaker, passwordFile) || strings.Contains(speaker, secretName) {
		neighbors.Password = password
	}
	r, err := router.StartFRR(f.Router, f.Dir(), router.FRR(neighbors))
	must(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(r.Log())
			for _, n := range b.nodes {
				t.Log(n.LogTail(20))
			}
		}
	})
	return b
}

// serve answers at the endpoints with all that was sent.
func (b *bed) serve() {
	must(b.t, b.Server.Do(func() error {
		l, err := net.Listen("tcp", fmt.Sprintf(":%d", port))
		if err != nil {
			return err
		}
		b.OnClose(l.Close)
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				go func() { _, _ = io.Copy(c, c); _ = c.Close() }()
			}
		}()
		return nil
	}))
}

// start starts the Weir of a node.
func (b *bed) start(i int, drain string) {
	n := b.configure(i, drain)
	d, err := b.Nodes[i].StartDaemon(exec.Command(weirtest.Binary(b.t), "run", "--config", n.config()), filepath.Join(n.dir, "log"))
	must(b.t, err)
	n.Daemon = d
	b.nodes = append(b.nodes, n)
}

// config is the configuration file.
func (n *node) config() string { return filepath.Join(n.dir, "config.yaml") }

// configure writes the configuration of a node, and the Service.
func (b *bed) configure(i int, drain string) *node {
	dir := filepath.Join(b.Dir(), fmt.Sprint("weir", i+1))
	must(b.t, os.MkdirAll(filepath.Join(dir, "manifests"), 0o755))
	n := &node{dir: dir, admin: api.NewClient(filepath.Join(dir, "weir.sock"))}
	b.manifest(n, true)
	config := fmt.Sprintf(`apiVersion: weir.dev/v1alpha1
kind: WeirConfiguration
nodeName: node%d
discovery: {manifests: {path: %s/manifests}}
interfaces: [{name: eth0%s}]
conntrack: {path: %s/conntrack, maxFlows: 65536, takeoverSeconds: 0}
admin: {socket: %s/weir.sock}
stateDir: %s/state
drain: %s
announce:
  %s
  prefixes: [10.99.0.0/24, "fd99::/64"]
  settleSeconds: 0
  drainSeconds: 5
`, i+1, dir, b.hook, dir, dir, dir, drain, b.speaker)
	must(b.t, os.WriteFile(n.config(), []byte(config), 0o644))
	return n
}

// bgpSessions are those of a node with the router.
func bgpSessions() string {
	return fmt.Sprintf(`speaker: bgp
  asn: %d
  peers:
  - {address: %s, asn: %d}
  - {address: "%s", asn: %d}`, router.NodeASN, netlab.Host4(netlab.FleetNet, netlab.FleetRouter), router.ASN,
		netlab.Host6(netlab.FleetNet, netlab.FleetRouter), router.ASN)
}

// manifest writes the Service, with its endpoints or without.
func (b *bed) manifest(n *node, served bool) {
	text := fmt.Sprintf(`apiVersion: v1
kind: Service
metadata: {namespace: test, name: web, annotations: %s}
spec:
  type: LoadBalancer
  allocateLoadBalancerNodePorts: false
  ipFamilyPolicy: RequireDualStack
  ipFamilies: [IPv4, IPv6]
  clusterIP: 10.96.0.10
  clusterIPs: [10.96.0.10, "fd96::10"]
  ports: [{name: web, port: %d}]
status: {loadBalancer: {ingress: [{ip: %s, ipMode: VIP}, {ip: "%s", ipMode: VIP}]}}
`, b.annotations, port, vip4, vip6)
	for _, f := range []struct {
		family string
		of     func(network, host uint8) netip.Addr
	}{{"IPv4", netlab.Host4}, {"IPv6", netlab.Host6}} {
		var endpoints []string
		for _, host := range b.hosts {
			if served {
				endpoints = append(endpoints, fmt.Sprintf(`{addresses: ["%s"], conditions: {ready: true}}`, f.of(netlab.FleetNet, host)))
			}
		}
		text += fmt.Sprintf(`---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {namespace: test, name: web-%s, labels: {kubernetes.io/service-name: web}}
addressType: %s
ports: [{name: web, port: %d, protocol: TCP}]
endpoints: [%s]
`, strings.ToLower(f.family), f.family, port, strings.Join(endpoints, ", "))
	}
	file := filepath.Join(n.dir, "manifests", "web.yaml")
	must(b.t, os.WriteFile(file+".new", []byte(text), 0o644))
	must(b.t, os.Rename(file+".new", file))
}

// until waits until the router sends both addresses to these nodes, from 0, and returns how
// long that took.
func (b *bed) until(nodes ...int) time.Duration {
	b.t.Helper()
	began := time.Now()
	deadline := began.Add(patience.For(40 * time.Second))
	for _, family := range []struct {
		p  netip.Prefix
		of func(network, host uint8) netip.Addr
	}{{netip.PrefixFrom(vip4, 32), netlab.Host4}, {netip.PrefixFrom(vip6, 128), netlab.Host6}} {
		var want []netip.Addr
		for _, i := range nodes {
			want = append(want, family.of(netlab.FleetNet, uint8(netlab.FleetFirstNode+i)))
		}
		for {
			got, err := router.NextHops(b.Router, family.p)
			must(b.t, err)
			if slices.Equal(got, want) {
				break
			}
			if time.Now().After(deadline) {
				b.t.Fatalf("%s goes to %v, want %v", family.p, got, want)
			}
			time.Sleep(5 * time.Millisecond)
		}
	}
	return time.Since(began)
}

// connect opens a connection of a client and exchanges a line.
func (b *bed) connect(a netip.Addr) net.Conn {
	b.t.Helper()
	var c net.Conn
	must(b.t, b.Client.Do(func() (err error) {
		c, err = net.DialTimeout("tcp", netip.AddrPortFrom(a, port).String(), patience.For(10*time.Second))
		return err
	}))
	b.t.Cleanup(func() { _ = c.Close() })
	must(b.t, echo(c))
	return c
}

// connectAll opens connections that a router spreads over all nodes.
func (b *bed) connectAll() {
	b.t.Helper()
	for range 32 {
		for _, a := range []netip.Addr{vip4, vip6} {
			_ = b.connect(a).Close()
		}
	}
}

func echo(c net.Conn) error {
	if err := c.SetDeadline(time.Now().Add(patience.For(10 * time.Second))); err != nil {
		return err
	}
	const text = "over the fleet\n"
	if _, err := c.Write([]byte(text)); err != nil {
		return err
	}
	return echoed(c, text)
}

// echoed reads the answer to a text.
func echoed(c net.Conn, text string) error {
	if err := c.SetDeadline(time.Now().Add(patience.For(10 * time.Second))); err != nil {
		return err
	}
	_, err := io.ReadFull(c, make([]byte, len(text)))
	return err
}

func (b *bed) announce(i int) *api.Announce {
	b.t.Helper()
	s, err := b.nodes[i].admin.Status(context.Background())
	must(b.t, err)
	return s.Announce
}

// The router sends to the nodes that serve, and to no others: after a start, a drain and its
// end, without endpoints, after a kill and after a stop.
func TestWireRouterFollowsTheFleet(t *testing.T) {
	b := newBed(t, 4, "{notReadySeconds: 0, timeoutSeconds: 0}")
	b.until(0, 1, 2, 3)
	b.connectAll()

	_, err := b.nodes[0].admin.DrainSelf(context.Background(), false)
	must(t, err)
	t.Logf("drained: %v", b.until(1, 2, 3))
	b.connectAll()
	if a := b.announce(0); len(a.Routes) != 0 || a.Addresses[0].Reason != "draining" {
		t.Errorf("of a drained node: %+v", a)
	}
	_, err = b.nodes[0].admin.DrainSelf(context.Background(), true)
	must(t, err)
	t.Logf("back: %v", b.until(0, 1, 2, 3))

	b.manifest(b.nodes[1], false)
	b.until(0, 2, 3)
	if a := b.announce(1); a.Addresses[0].Reason != "not-served" {
		t.Errorf("without endpoints: %+v", a)
	}
	b.connectAll()
	b.manifest(b.nodes[1], true)
	b.until(0, 1, 2, 3)

	must(t, b.nodes[2].Kill())
	t.Logf("killed: %v", b.until(0, 1, 3))
	b.connectAll()

	must(t, b.nodes[3].Signal(syscall.SIGTERM))
	t.Logf("stopped: %v", b.until(0, 1))
	s, err := b.nodes[3].admin.Status(context.Background())
	if err != nil || s.Drain == nil || !s.Drain.Accepting {
		t.Errorf("after the withdrawal, and before drainSeconds are over: %+v, %v", s, err)
	}
	b.connectAll()
	must(t, b.nodes[3].Err())
}

// weir runs a command that asks the first node.
func (b *bed) weir(args ...string) string {
	b.t.Helper()
	out, err := exec.Command(weirtest.Binary(b.t), append(args, "--admin-socket", filepath.Join(b.nodes[0].dir, "weir.sock"))...).CombinedOutput()
	if err != nil {
		b.t.Errorf("%v: %s", err, out)
	}
	return string(out)
}

// `weir status --announce` says why an address is not announced, and the
// session of a router that is gone is a problem.
func TestWireAnnouncementIsExplained(t *testing.T) {
	b := newBed(t, 1, "{notReadySeconds: 0, timeoutSeconds: 0}")
	b.until(0)
	weir := b.weir
	if out := weir("status", "--announce"); !strings.Contains(out, "established") || !strings.Contains(out, "10.99.0.10") {
		t.Errorf("status --announce: %s", out)
	}
	if out := weir("status", "--announce", "-o", "json"); !strings.Contains(out, `"announced": true`) {
		t.Errorf("status --announce -o json: %s", out)
	}
	b.manifest(b.nodes[0], false)
	b.until()
	if out := weir("status", "--announce"); !strings.Contains(out, "not-served") {
		t.Errorf("status --announce: %s", out)
	}
	link, err := b.Nodes[0].Interface("eth0")
	must(t, err)
	must(t, b.Nodes[0].Netlink().LinkSetDown(link))
	deadline := time.Now().Add(patience.For(40 * time.Second)) // the hold time, and a look
	for !strings.Contains(weir("status", "--problems"), "the session is down") {
		if time.Now().After(deadline) {
			t.Fatalf("problems: %s", weir("status", "--problems"))
		}
		time.Sleep(200 * time.Millisecond)
	}
}
