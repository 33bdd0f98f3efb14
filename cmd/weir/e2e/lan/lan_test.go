// Package lan tests several Weirs on a link without a router, which elect an owner per address.
package lan

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/lb/announce/l2"
	"github.com/weirlb/weir/perf/netlab"
	"github.com/weirlb/weir/perf/netlab/labtest"
	"github.com/weirlb/weir/perf/netlab/patience"
	"github.com/weirlb/weir/perf/netlab/weirtest"
	"github.com/weirlb/weir/perf/netlab/workload"
)

// The link is that of netlab.LAN.
const (
	network   = netlab.LANNet
	clientID  = netlab.LANClient
	serverID  = netlab.LANServer
	firstNode = netlab.LANFirstNode
	firstVIP  = 100
	port      = 8080
)

func TestMain(m *testing.M) { weirtest.Main(m) }

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// bed is a link with a client, the server of the endpoints, and nodes.
type bed struct {
	*netlab.LAN
	t     testing.TB
	nodes []*node
	vips  []netip.Addr
	// l2 are further fields of announce.l2, local is the node with the endpoints of a Service with
	// externalTrafficPolicy: Local, "" for Cluster.
	l2, local string
	// objects is a file of pool objects, "" for none.
	objects string
	// config and manifests are those of a recipe, in place of this file's; "" for none.
	config, manifests string
}

type node struct {
	*netlab.Namespace
	*netlab.Daemon
	dir   string
	admin *api.Client
}

func vip4(i int) netip.Addr { return netlab.Host4(network, uint8(firstVIP+i)) }
func vip6(i int) netip.Addr { return netlab.Host6(network, uint8(firstVIP+i)) }

// newBed builds the link and the nodes, without Weirs, for addresses of a Service.
func newBed(t testing.TB, nodes, addresses int) *bed {
	t.Helper()
	labtest.Require(t)
	lab, err := netlab.NewLAN(nodes)
	must(t, err)
	b := &bed{LAN: lab, t: t}
	t.Cleanup(func() {
		if t.Failed() {
			for _, n := range b.nodes {
				if n.Daemon != nil {
					t.Log(n.Namespace.Name(), n.LogTail(15))
				}
			}
		}
		if err := lab.Close(); err != nil {
			t.Error(err)
		}
	})
	for i := range addresses {
		b.vips = append(b.vips, vip4(i), vip6(i))
	}
	for _, n := range lab.Nodes {
		b.nodes = append(b.nodes, &node{Namespace: n})
	}
	b.serve()
	return b
}

// serve answers at the endpoint with all that was sent, over TCP and UDP.
func (b *bed) serve() {
	echo, err := workload.ServeEcho(b.Server, b.Server.Name(), fmt.Sprintf("[::]:%d", port))
	must(b.t, err)
	b.OnClose(echo.Close)
}

// startAll starts a Weir on each node, and waits until each knows the others, and each address has an
// owner.
func (b *bed) startAll() {
	b.t.Helper()
	for i := range b.nodes {
		b.start(i)
	}
	for before := []int(nil); ; time.Sleep(200 * time.Millisecond) { // nodes that are new get their share
		b.untilOwned()
		var now []int
		for _, a := range b.vips {
			now = append(now, b.owner(a))
		}
		if slices.Equal(now, before) {
			return
		}
		before = now
	}
}

// start starts the Weir of a node. edits are pairs of texts to replace in its configuration.
func (b *bed) start(i int, edits ...string) {
	b.t.Helper()
	n := b.nodes[i]
	n.dir = b.write(n.Namespace.Name(), edits...)
	n.admin = api.NewClient(filepath.Join(n.dir, "weir.sock"))
	cmd := exec.Command(weirtest.Binary(b.t), "run", "--config", filepath.Join(n.dir, "config.yaml"))
	d, err := n.StartDaemon(cmd, filepath.Join(n.dir, "log"))
	must(b.t, err)
	n.Daemon = d
}

// write writes the files of a node, and returns their folder.
func (b *bed) write(name string, edits ...string) (dir string) {
	b.t.Helper()
	dir = filepath.Join(b.Dir(), name)
	must(b.t, os.MkdirAll(filepath.Join(dir, "manifests"), 0o755))
	manifest, config := b.manifest(), b.configuration(name, dir)
	if b.config != "" {
		if _, err := os.Stat(filepath.Join(b.Dir(), "l2.key")); err != nil {
			_ = b.key()
		}
		manifest, config = b.manifests, strings.NewReplacer("edge-1 ", name+" ", "/etc/weir/l2.key", filepath.Join(b.Dir(), "l2.key"),
			"/etc/weir", dir).Replace(b.config)+paths(dir)
	}
	must(b.t, os.WriteFile(filepath.Join(dir, "manifests", "web.yaml"), []byte(manifest), 0o644))
	must(b.t, os.WriteFile(filepath.Join(dir, "config.yaml"), []byte(strings.NewReplacer(edits...).Replace(config)), 0o644))
	return dir
}

// paths are the fields of the configuration that keep the files of nodes apart.
func paths(dir string) string {
	return fmt.Sprintf(`
conntrack: {path: %s/conntrack, maxFlows: 65536, takeoverSeconds: 0}
admin: {socket: %s/weir.sock}
stateDir: %s/state
`, dir, dir, dir)
}

// configuration is that of a node.
func (b *bed) configuration(name, dir string) string {
	return fmt.Sprintf(`apiVersion: weir.dev/v1alpha1
kind: WeirConfiguration
nodeName: %s
discovery: {manifests: {path: %s/manifests}}
interfaces: [{name: eth0}]
drain: {notReadySeconds: 0, timeoutSeconds: 1}
limits: {namespacePercent: 100, servicePercent: 100}
announce:
  settleSeconds: 0
  drainSeconds: 1
  objects: [%s]
  l2: {interfaces: [eth0]%s}
`, name, dir, b.objects, b.l2) + paths(dir)
}

// manifest is a Service of all addresses, with an endpoint per family.
func (b *bed) manifest() string {
	policy, on := "Cluster", ""
	if b.local != "" {
		policy, on = "Local", ", nodeName: "+b.local
	}
	var ingress []string
	for _, a := range b.vips {
		ingress = append(ingress, fmt.Sprintf(`{ip: "%s", ipMode: VIP}`, a))
	}
	text := fmt.Sprintf(`apiVersion: v1
kind: Service
metadata: {namespace: test, name: web, labels: {app: web}}
spec:
  type: LoadBalancer
  externalTrafficPolicy: %s
  allocateLoadBalancerNodePorts: false
  ipFamilyPolicy: RequireDualStack
  ipFamilies: [IPv4, IPv6]
  clusterIP: 10.96.0.10
  clusterIPs: [10.96.0.10, "fd96::10"]
  ports: [{name: tcp, port: %d}, {name: udp, port: %d, protocol: UDP}]
status: {loadBalancer: {ingress: [%s]}}
`, policy, port, port, strings.Join(ingress, ", "))
	for _, a := range []netip.Addr{netlab.Host4(network, serverID), netlab.Host6(network, serverID)} {
		family := "IPv6"
		if a.Is4() {
			family = "IPv4"
		}
		text += fmt.Sprintf(`---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {namespace: test, name: web-%s, labels: {kubernetes.io/service-name: web}}
addressType: %s
ports: [{name: tcp, port: %d, protocol: TCP}, {name: udp, port: %d, protocol: UDP}]
endpoints: [{addresses: ["%s"]%s, conditions: {ready: true}}]
`, strings.ToLower(family), family, port, port, a, on)
	}
	return text
}

// l2of is what a node says of an address, nil if it does not answer or does not know it.
func (n *node) l2of(a netip.Addr) *api.AnnouncedL2 {
	s, err := n.status()
	if err != nil || s.Announce == nil {
		return nil
	}
	for _, x := range s.Announce.Addresses {
		if x.Address == a {
			return x.L2
		}
	}
	return nil
}

func (n *node) status() (*api.Status, error) {
	if n.admin == nil {
		return nil, errors.New("it was not started")
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	return n.admin.Status(ctx)
}

// owners are the nodes that own an address, by number from 0.
func (b *bed) owners(a netip.Addr) (list []int) {
	for i, n := range b.nodes {
		if x := n.l2of(a); x != nil && x.State == "owner" {
			list = append(list, i)
		}
	}
	return list
}

// until waits for a condition.
func (b *bed) until(what string, met func() bool) time.Duration {
	b.t.Helper()
	began := time.Now()
	for deadline := began.Add(patience.For(20 * time.Second)); !met(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			for _, n := range b.nodes {
				if s, err := n.status(); err == nil {
					b.t.Logf("%s: %+v", n.Namespace.Name(), s.Announce.L2)
					for _, a := range s.Announce.Addresses[:min(len(s.Announce.Addresses), 8)] {
						b.t.Logf("  %s %v %s %+v", a.Address, a.Announced, a.Reason, a.L2)
					}
				}
			}
			b.t.Fatalf("%s: not in time", what)
		}
	}
	return time.Since(began)
}

// untilOwned waits until all nodes are members for each other, and each address has exactly one
// owner that all of them name.
func (b *bed) untilOwned() {
	b.t.Helper()
	b.untilJoined()
	for _, a := range b.vips {
		b.owner(a)
	}
}

// untilJoined waits until all nodes are members for each other.
func (b *bed) untilJoined() {
	b.t.Helper()
	for _, n := range b.nodes {
		b.until(n.Namespace.Name()+" has joined the others", func() bool { return b.joined(n) })
	}
}

// joined reports whether a node has all others as members, and knows their claims.
func (b *bed) joined(n *node) bool {
	s, err := n.status()
	if err != nil || s.Announce == nil || len(s.Announce.L2) == 0 {
		return false
	}
	for _, l := range s.Announce.L2 {
		for _, o := range b.nodes {
			if o != n && !slices.Contains(l.Nodes, o.Namespace.Name()) {
				return false
			}
		}
	}
	return true
}

// owner waits until an address has exactly one owner, which all nodes name, and all nodes that have
// an endpoint would own it: one that is new gets its share as soon as it serves.
func (b *bed) owner(a netip.Addr) (owner int) {
	b.t.Helper()
	b.until(a.String()+" has an owner", func() bool {
		owners := b.owners(a)
		if len(owners) != 1 {
			return false
		}
		owner = owners[0]
		for _, n := range b.nodes {
			x := n.l2of(a)
			if x == nil || x.Owner != b.nodes[owner].Namespace.Name() || x.State == "ineligible" && b.local == "" {
				return false
			}
		}
		return true
	})
	return owner
}

// macOf is the MAC address of eth0.
func (n *node) macOf(t testing.TB) net.HardwareAddr {
	t.Helper()
	l, err := n.Interface("eth0")
	must(t, err)
	return l.Attrs().HardwareAddr
}

// key writes a key file and returns its path.
func (b *bed) key() string {
	file := filepath.Join(b.Dir(), "l2.key")
	must(b.t, os.WriteFile(file, []byte(base64.StdEncoding.EncodeToString(make([]byte, 32))), 0o600))
	return file
}

func udpAddr(a netip.Addr) net.Addr { return net.UDPAddrFromAddrPort(netip.AddrPortFrom(a, l2.Port)) }
