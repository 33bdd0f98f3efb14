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
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/discovery/kube"
	"github.com/weirlb/weir/discovery/kube/kubetest"
	"github.com/weirlb/weir/perf/netlab"
	"github.com/weirlb/weir/perf/netlab/patience"
	"github.com/weirlb/weir/perf/netlab/router"
	"github.com/weirlb/weir/perf/netlab/weirtest"
)

// objectNamespace has the objects of MetalLB, and secretName is that of the routers' password there.
const (
	objectNamespace = "metallb-system"
	secretName      = "router-password"
)

// clustered is a bed of one node, whose Services and objects are in an API server.
type clustered struct {
	*bed
	cluster *kubetest.Cluster
	apply   *kubetest.Applier
	site    *kubetest.Site
	file    string // the configuration
}

// newClustered starts the API server with a Service, and neither objects nor Weir. announce are further
// fields of announce.
func newClustered(t *testing.T, announce string) *clustered {
	t.Helper()
	c := &clustered{cluster: kubetest.Require(t, kubetest.Options{Authz: "RBAC"}), bed: newRouted(t, 1, announce)}
	c.serve()
	c.apply = c.cluster.Applier(t)
	c.apply.MetalLB()
	c.site = kubetest.NewSite(t, c.cluster.Client(t))
	kubeconfig, _ := c.site.Account(c.cluster, "weir", accountRules(announce))
	c.forward(t)
	c.apply.All(`{apiVersion: v1, kind: Node, metadata: {name: node1, labels: {rack: "7"}}}`)
	c.web(t)
	dir := filepath.Join(c.Dir(), "weir1")
	must(t, os.MkdirAll(dir, 0o755))
	c.file = filepath.Join(dir, "config.yaml")
	must(t, os.WriteFile(c.file, fmt.Appendf(nil, `apiVersion: weir.dev/v1alpha1
kind: WeirConfiguration
nodeName: node1
discovery: {kubernetes: {kubeconfig: %s}}
interfaces: [{name: eth0}]
conntrack: {path: %s/conntrack, maxFlows: 65536, takeoverSeconds: 0}
admin: {socket: %s/weir.sock}
stateDir: %s/state
drain: {notReadySeconds: 0, timeoutSeconds: 0}
announce: {speaker: bgp, objectNamespaces: [%s], settleSeconds: 0, drainSeconds: 0, %s}
`, kubeconfig, dir, dir, dir, objectNamespace, announce), 0o644))
	c.nodes = []*node{{dir: dir, admin: api.NewClient(filepath.Join(dir, "weir.sock"))}}
	return c
}

// accountRules are the rights that Weir asks for, and no others.
func accountRules(announce string) (out []rbacv1.PolicyRule) {
	cfg := kube.Config{Events: true, ObjectNamespaces: []string{objectNamespace}}
	for name, verbs := range kube.Allowances(cfg) {
		group, resource, ok := strings.Cut(name, "/")
		if !ok {
			group, resource = "", name
		}
		out = append(out, rbacv1.PolicyRule{APIGroups: []string{group}, Resources: []string{resource}, Verbs: verbs})
	}
	if strings.Contains(announce, secretName) {
		out = append(out, rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"secrets"}, ResourceNames: []string{secretName}, Verbs: []string{"list", "watch"}})
	}
	return out
}

// forward lets the node reach the API server, which listens on the loopback of another namespace.
func (c *clustered) forward(t *testing.T) {
	t.Helper()
	addr := "127.0.0.1:" + c.cluster.Port()
	_, err := c.Forward(c.Nodes[0], addr, func(net.Conn) (net.Conn, error) { return net.Dial("tcp", addr) })
	must(t, err)
}

// web makes a Service with both addresses.
func (c *clustered) web(t *testing.T) {
	t.Helper()
	text := fmt.Sprintf(`apiVersion: v1
kind: Service
metadata: {namespace: %[1]s, name: web}
spec:
  type: LoadBalancer
  allocateLoadBalancerNodePorts: false
  ipFamilyPolicy: RequireDualStack
  ports: [{name: web, port: %[2]d}]
`, c.site.Namespace, port)
	for family, a := range map[string]netip.Addr{"IPv4": netlab.Host4(netlab.FleetNet, netlab.FleetServer), "IPv6": netlab.Host6(netlab.FleetNet, netlab.FleetServer)} {
		text += fmt.Sprintf(`---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {namespace: %s, name: web-%s, labels: {kubernetes.io/service-name: web}}
addressType: %s
ports: [{name: web, port: %d, protocol: TCP}]
endpoints: [{addresses: ["%s"], conditions: {ready: true}}]
`, c.site.Namespace, strings.ToLower(family), family, port, a)
	}
	c.apply.All(text)
	c.apply.Status(c.apply.Objects(fmt.Sprintf(`apiVersion: v1
kind: Service
metadata: {namespace: %s, name: web}
status: {loadBalancer: {ingress: [{ip: %s, ipMode: VIP}, {ip: "%s", ipMode: VIP}]}}
`, c.site.Namespace, vip4, vip6))[0])
}

// run starts Weir.
func (c *clustered) run(t *testing.T, log string) {
	t.Helper()
	n := c.nodes[0]
	d, err := c.Nodes[0].StartDaemon(exec.Command(weirtest.Binary(t), "run", "--config", c.file), filepath.Join(n.dir, log))
	must(t, err)
	n.Daemon = d
}

// poolsAndRoutes are a pool of each family, and their advertisement.
const poolsAndRoutes = `apiVersion: metallb.io/v1beta1
kind: IPAddressPool
metadata: {namespace: metallb-system, name: public}
spec: {addresses: [10.99.0.0/24, "fd99::/64"]}
---
apiVersion: metallb.io/v1beta1
kind: BGPAdvertisement
metadata: {namespace: metallb-system, name: all}
spec: {ipAddressPools: [public]}
`

// peer is a BGPPeer at an address of the router, with further fields.
func peer(name string, a netip.Addr, more string) string {
	return fmt.Sprintf(`apiVersion: metallb.io/v1beta2
kind: BGPPeer
metadata: {namespace: metallb-system, name: %s}
spec: {myASN: %d, peerASN: %d, peerAddress: "%s", %s}
`, name, router.NodeASN, router.ASN, a, more)
}

// untilStatus waits for a state of the announcement.
func (c *clustered) untilStatus(what string, ok func(*api.Status) bool) *api.Status {
	c.t.Helper()
	for deadline := time.Now().Add(patience.For(60 * time.Second)); ; time.Sleep(50 * time.Millisecond) {
		s, err := c.nodes[0].admin.Status(context.Background())
		if err == nil && s.Announce != nil && ok(s) {
			return s
		}
		if time.Now().After(deadline) {
			c.t.Fatalf("%s: %+v, %v\n%s", what, s, err, c.nodes[0].LogTail(20))
		}
	}
}

// session is the state of the session with an address of the router.
func session(s *api.Status, a netip.Addr) api.AnnouncePeer {
	for _, p := range s.Announce.Peers {
		if p.Peer == a.String() {
			return p
		}
	}
	return api.AnnouncePeer{}
}

func hasProblem(s *api.Status, text string) bool {
	for _, p := range s.Problems {
		if strings.Contains(p.String(), text) {
			return true
		}
	}
	return false
}

// MetalLB's objects in the API server give a node routers and prefixes, by its labels and with the
// password of a Secret. They are followed without a restart. A mistake, and an API server that is
// away, withdraw nothing.
func TestKubeWireObjectsOfTheAPIServerAreAnnounced(t *testing.T) {
	four, six := netlab.Host4(netlab.FleetNet, netlab.FleetRouter), netlab.Host6(netlab.FleetNet, netlab.FleetRouter)
	const secured = "passwordSecret: {name: " + secretName + "}, nodeSelectors: [{matchLabels: {rack: \"7\"}}]"
	c := newClustered(t, "objectSecrets: ["+secretName+"]")
	c.run(t, "log")
	if s := c.untilStatus("without objects", func(s *api.Status) bool {
		return s.Announce.Objects != nil && s.Announce.Objects.APIServer == api.ObjectsListed
	}); len(s.Announce.Peers) != 0 {
		t.Fatalf("%+v", s.Announce)
	}
	c.apply.All(peer("six", six, secured) + "---\n" + peer("elsewhere", netip.MustParseAddr("10.60.0.99"), `nodeSelectors: [{matchLabels: {rack: "8"}}]`) + "---\n" + poolsAndRoutes)
	c.untilStatus("a Secret that is not there", func(s *api.Status) bool { return hasProblem(s, "spec.passwordSecret: there is no Secret") })
	c.apply.All(fmt.Sprintf("{apiVersion: v1, kind: Secret, metadata: {namespace: metallb-system, name: %s}, type: kubernetes.io/basic-auth, stringData: {password: %s}}\n---\n", secretName, password) + peer("four", four, secured))
	c.until(0)
	_ = c.connect(vip4).Close()
	_ = c.connect(vip6).Close()
	before := c.untilStatus("both sessions", func(s *api.Status) bool { return session(s, four).Established && session(s, six).Established })
	if len(before.Announce.Peers) != 2 || before.Announce.Objects.Peers != 2 || before.Announce.Objects.Advertisements != 1 {
		t.Errorf("%+v", before.Announce)
	}

	// A session with other times begins anew, and the other goes on.
	c.apply.All(peer("six", six, secured+", holdTime: 30s"))
	c.untilStatus("other times", func(s *api.Status) bool { return session(s, six).Ends == 1 && session(s, six).Established })
	c.until(0)

	// A mistake changes nothing, and is shown. What is right is taken over with its end.
	c.apply.All(peer("four", four, secured+", vrf: red"))
	s := c.untilStatus("a field that is not done", func(s *api.Status) bool { return hasProblem(s, "BGPPeer metallb-system/four: spec.vrf") })
	if o := s.Announce.Objects; o.Refused == "" || len(o.Faults) == 0 || !session(s, four).Since.Equal(*session(before, four).Since) {
		t.Errorf("%+v, %+v", o, s.Announce.Peers)
	}
	for _, x := range [][2]string{
		{c.weir("status", "--announce"), "spec.vrf"}, {c.weir("status", "--problems"), "spec.vrf"},
		{c.check(), "BGPPeer metallb-system/four: spec.vrf"}, {c.check(), "1 BGPPeers, 1 BGPAdvertisements and 0 L2Advertisements are for this node"},
		{c.weir("events"), "not taken over"}, {c.metrics(), "\nweir_announce_object_faults 1\n"},
	} {
		if !strings.Contains(x[0], x[1]) {
			t.Errorf("%q is not in %s", x[1], x[0])
		}
	}
	if text := c.weir("status", "-o", "json") + c.nodes[0].LogTail(1000); strings.Contains(text, password) {
		t.Error("the password is shown")
	}
	c.apply.Delete(c.apply.Objects(poolsAndRoutes)[1])
	time.Sleep(2 * time.Second)
	c.until(0)
	c.apply.All(poolsAndRoutes + "---\n" + peer("four", four, secured))
	c.untilStatus("mended", func(s *api.Status) bool {
		return s.Announce.Objects.Refused == "" && len(s.Announce.Objects.Faults) == 0
	})
	c.until(0)

	// An advertisement of some Services follows their labels.
	c.apply.All(strings.Replace(poolsAndRoutes, "[public]}", `[public], serviceSelectors: [{matchExpressions: [{key: tier, operator: In, values: [front]}]}]}`, 1))
	c.until()
	c.untilStatus("no advertisement selects it", func(s *api.Status) bool {
		return s.Announce.Addresses[0].Reason == "not-allowed" && s.Announce.Addresses[0].Detail == "no advertisement selects it"
	})
	_, err := c.cluster.Client(t).CoreV1().Services(c.site.Namespace).Patch(t.Context(), "web", types.MergePatchType, []byte(`{"metadata":{"labels":{"tier":"front"}}}`), metav1.PatchOptions{})
	must(t, err)
	c.until(0)
	_ = c.connect(vip4).Close()

	// An advertisement for a router is told to that router alone.
	c.apply.All(strings.Replace(poolsAndRoutes, "[public]}", "[public], peers: [six]}", 1))
	c.untilHops(netip.PrefixFrom(vip4, 32))
	if text := c.weir("explain", "--address", vip6.String()); !regexp.MustCompile(`(?m)^`+six.String()+` .*`+vip6.String()+`/128$`).MatchString(text) ||
		regexp.MustCompile(`(?m)^`+four.String()+` .*`+vip6.String()).MatchString(text) {
		t.Errorf("%s", text)
	}
	c.apply.All(poolsAndRoutes)
	c.until(0)

	c.cluster.Stop()
	s = c.untilStatus("without the API server", func(s *api.Status) bool {
		return hasProblem(s, "bgppeers.metallb.io of metallb-system: cannot be watched for the announcement")
	})
	time.Sleep(12 * time.Second) // more than the hold time
	c.until(0)
	_ = c.connect(vip4).Close()
	if now := session(s, four); !now.Established || !now.Since.Equal(*session(before, four).Since) {
		t.Errorf("%+v", now)
	}

	must(t, c.cluster.Restart())
	c.apply = c.cluster.Applier(t)
	c.apply.Delete(c.apply.Objects(peer("four", four, ""))[0])
	c.untilHops(netip.PrefixFrom(vip4, 32))
	c.untilHops(netip.PrefixFrom(vip6, 128), netlab.Host6(netlab.FleetNet, netlab.FleetFirstNode))
}

// untilHops waits until the router's route has these next hops.
func (b *bed) untilHops(p netip.Prefix, want ...netip.Addr) {
	b.t.Helper()
	for deadline := time.Now().Add(patience.For(40 * time.Second)); ; time.Sleep(5 * time.Millisecond) {
		got, err := router.NextHops(b.Router, p)
		must(b.t, err)
		if fmt.Sprint(got) == fmt.Sprint(want) {
			return
		}
		if time.Now().After(deadline) {
			b.t.Fatalf("%v goes to %v, want %v", p, got, want)
		}
	}
}

// check is the output of `weir check` on the node.
func (c *clustered) check() string {
	c.t.Helper()
	var out strings.Builder
	cmd := exec.Command(weirtest.Binary(c.t), "check", "--config", c.file)
	cmd.Stdout, cmd.Stderr = &out, &out
	p, err := c.Nodes[0].Start(cmd)
	must(c.t, err)
	<-p.Done() // a running Weir may be in the way of the next
	return out.String()
}

// metrics are those of the node.
func (c *clustered) metrics() string {
	c.t.Helper()
	var text []byte
	conn, err := c.Nodes[0].DialContext(c.t.Context(), "tcp", "127.0.0.1:9464")
	must(c.t, err)
	defer conn.Close()
	_, err = io.WriteString(conn, "GET /metrics HTTP/1.0\r\n\r\n")
	must(c.t, err)
	text, err = io.ReadAll(conn)
	must(c.t, err)
	return string(text)
}

// A start while the API server is away announces by the objects of the last process.
func TestKubeWireLastKnownObjectsAreAnnounced(t *testing.T) {
	c := newClustered(t, "maxAddresses: 10")
	four, six := netlab.Host4(netlab.FleetNet, netlab.FleetRouter), netlab.Host6(netlab.FleetNet, netlab.FleetRouter)
	c.apply.All(peer("four", four, `nodeSelectors: [{matchLabels: {rack: "7"}}]`) + "---\n" + peer("six", six, "") + "---\n" + poolsAndRoutes)
	c.run(t, "log")
	c.until(0)
	n := c.nodes[0]
	for deadline := time.Now().Add(patience.For(40 * time.Second)); ; time.Sleep(50 * time.Millisecond) { // the Services are kept a little later
		_, err := os.Stat(filepath.Join(n.dir, "state", "announced-objects.json"))
		if entries, _ := os.ReadDir(filepath.Join(n.dir, "state")); err == nil && len(entries) > 1 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("nothing is kept: %v", err)
		}
	}
	must(t, n.Signal(syscall.SIGTERM))
	<-n.Done()
	c.until()
	c.cluster.Stop()
	c.run(t, "log2")
	c.until(0)
	_ = c.connect(vip6).Close()
	c.untilStatus("last known", func(s *api.Status) bool { return s.Announce.Objects.APIServer == api.ObjectsLastKnown })
	must(t, c.cluster.Restart())
	c.untilStatus("the API server is back", func(s *api.Status) bool { return s.Announce.Objects.APIServer == api.ObjectsListed })
	c.until(0)
}
