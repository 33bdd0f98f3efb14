package fleet

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/lb/counter"
	"github.com/weirlb/weir/perf/netlab"
	"github.com/weirlb/weir/perf/netlab/patience"
	"github.com/weirlb/weir/perf/netlab/router"
)

const changingServices = 8

// changingEndpoint is an endpoint of a Service: absent, ready, not ready or terminating.
type changingEndpoint struct {
	host  uint8
	node  int
	state int
}

// States of a changingEndpoint. All of them answer: it is the node that must not lose packets.
const (
	absent = iota
	ready
	notReady
	terminating
)

// changingService is a Service with an address of each family, of its own.
type changingService struct {
	number    int
	exists    bool
	local     bool // externalTrafficPolicy
	endpoints []changingEndpoint
}

func (s *changingService) addresses() []netip.Addr {
	return []netip.Addr{
		netip.AddrFrom4([4]byte{10, 99, 0, uint8(20 + s.number)}), netip.MustParseAddr(fmt.Sprintf("fd99::%x", 0x20+s.number)),
	}
}

// changingFleet is a fleet whose Services change at random under constant traffic.
type changingFleet struct {
	*bed
	random   *rand.Rand
	services []*changingService
	drained  []bool
	captures []*netlab.Capture
	before   []*api.Status
	noRoute  netlab.Counters // of the router, before
	traffic  *datagrams
}

// Over random changes of Services, endpoints and nodes, no packet comes to a node for an address
// that the node does not serve: clients send to all addresses all the time, and the router takes
// those that it has a route for. The endpoints themselves never fail.
func TestWireNoPacketForAnUnservedAddress(t *testing.T) {
	linger := fmt.Sprintf("\n  lingerMilliseconds: %d", patience.For(time.Second).Milliseconds())
	c := newChanging(t, number(t, "WEIR_FLEET_SEED", 18), linger)
	if n := c.changeAndCount(number(t, "WEIR_FLEET_CHANGES", 100)); n > 0 {
		t.Errorf("%d packets came for addresses that are not served", n)
	}
}

// Without the time after a withdrawal, packets come that the router has sent before it followed:
// the test above would see them.
func TestWireRouterSendsUntilItFollows(t *testing.T) {
	c := newChanging(t, number(t, "WEIR_FLEET_SEED", 18), "\n  lingerMilliseconds: 0")
	if n := c.changeAndCount(number(t, "WEIR_FLEET_CHANGES", 40)); n == 0 {
		t.Error("no packet came after a withdrawal")
	}
}

// number is the value of an environment variable.
func number(t *testing.T, variable string, otherwise int) int {
	text := os.Getenv(variable)
	if text == "" {
		return otherwise
	}
	n, err := strconv.Atoi(text)
	must(t, err)
	return n
}

// changeAndCount makes changes, and returns the number of packets that nodes did not serve.
func (c *changingFleet) changeAndCount(changes int) (unserved uint64) {
	began, kinds := time.Now(), map[string]int{}
	for i := range changes {
		kinds[c.change()]++
		if i%16 == 15 {
			c.settled()
		}
		time.Sleep(time.Duration(c.random.IntN(150)) * time.Millisecond)
	}
	c.settled()
	c.report("%s: %d changes in %v, %v\n", c.t.Name(), changes, time.Since(began).Round(time.Second), kinds)
	c.traffic.end()
	return c.unserved()
}

func newChanging(t *testing.T, seed int, fields string) *changingFleet {
	t.Helper()
	c := &changingFleet{bed: newRouted(t, 2, bgpSessions()+fields), random: rand.New(rand.NewPCG(uint64(seed), 18)), drained: make([]bool, 2)}
	c.hook = ", hook: xdp"
	c.serve()
	var hosts []netip.Addr
	for i := range uint8(4) {
		host := netlab.FleetServer + i
		if i > 0 {
			must(t, c.Server.AddAddr("eth0", netip.PrefixFrom(netlab.Host4(netlab.FleetNet, host), 24)))
			must(t, c.Server.AddAddr("eth0", netip.PrefixFrom(netlab.Host6(netlab.FleetNet, host), 64)))
		}
		hosts = append(hosts, netlab.Host4(netlab.FleetNet, host), netlab.Host6(netlab.FleetNet, host))
	}
	c.echoDatagrams(hosts)
	for i := range changingServices {
		s := &changingService{number: i, exists: true, local: i%2 == 1}
		for k := range 4 {
			s.endpoints = append(s.endpoints, changingEndpoint{uint8(netlab.FleetServer + k), k % 2, ready})
		}
		c.services = append(c.services, s)
	}
	for i := range c.Nodes {
		c.start(i, noDrain)
		c.write(i)
	}
	c.until(0, 1)
	c.settled()
	var targets []netip.Addr
	for _, s := range c.services {
		targets = append(targets, s.addresses()...)
	}
	for i, n := range c.Nodes {
		capture, err := netlab.NewCapture(n, "eth0")
		must(t, err)
		c.captures = append(c.captures, capture)
		s, err := c.nodes[i].admin.Status(context.Background())
		must(t, err)
		c.before = append(c.before, s)
	}
	var err error
	c.noRoute, err = c.Router.Counters()
	must(t, err)
	c.traffic = c.sendDatagrams(targets)
	return c
}

// change makes a random change, and names it.
func (c *changingFleet) change() (kind string) {
	c.t.Helper()
	s := c.services[c.random.IntN(len(c.services))]
	state := func() int { return []int{ready, ready, ready, absent, notReady, terminating}[c.random.IntN(6)] }
	switch n := c.random.IntN(20); {
	case n == 0 || slices.Contains(c.drained, true) && n < 4:
		i := max(slices.Index(c.drained, true), 0)
		_, err := c.nodes[i].admin.DrainSelf(context.Background(), c.drained[i])
		must(c.t, err)
		c.drained[i] = !c.drained[i]
		return "drain"
	case !s.exists || n < 4:
		kind, s.exists = "Service", !s.exists
	case n < 6:
		kind, s.local = "policy", !s.local
	case n < 9: // all at once: the last endpoint of a node goes often
		kind = "all endpoints"
		for i := range s.endpoints {
			s.endpoints[i].state = state()
		}
	default:
		kind = "endpoint"
		s.endpoints[c.random.IntN(len(s.endpoints))].state = state()
	}
	for _, i := range c.random.Perm(len(c.nodes)) {
		c.write(i)
		time.Sleep(time.Duration(c.random.IntN(40)) * time.Millisecond)
	}
	return kind
}

// write gives the Services to a node.
func (c *changingFleet) write(i int) {
	c.t.Helper()
	var text strings.Builder
	for _, s := range c.services {
		s.manifest(&text)
	}
	file := filepath.Join(c.nodes[i].dir, "manifests", "changing.yaml")
	must(c.t, os.WriteFile(file+".new", []byte(text.String()), 0o644))
	must(c.t, os.Rename(file+".new", file))
}

func (s *changingService) manifest(text *strings.Builder) {
	if !s.exists {
		return
	}
	policy, a := "Cluster", s.addresses()
	if s.local {
		policy = "Local"
	}
	fmt.Fprintf(text, `---
apiVersion: v1
kind: Service
metadata: {namespace: test, name: s%d}
spec:
  type: LoadBalancer
  allocateLoadBalancerNodePorts: false
  externalTrafficPolicy: %s
  ipFamilyPolicy: RequireDualStack
  ipFamilies: [IPv4, IPv6]
  clusterIP: 10.96.0.%d
  clusterIPs: [10.96.0.%d, "fd96::%x"]
  ports: [{name: u, port: %d, protocol: UDP}]
status: {loadBalancer: {ingress: [{ip: %s, ipMode: VIP}, {ip: "%s", ipMode: VIP}]}}
`, s.number, policy, 20+s.number, 20+s.number, 0x20+s.number, port, a[0], a[1])
	for family, of := range map[string]func(network, host uint8) netip.Addr{"IPv4": netlab.Host4, "IPv6": netlab.Host6} {
		var list []string
		for _, e := range s.endpoints {
			if e.state != absent {
				list = append(list, fmt.Sprintf(`{addresses: ["%s"], nodeName: node%d, conditions: {ready: %v, serving: %v, terminating: %v}}`,
					of(netlab.FleetNet, e.host), e.node+1, e.state == ready, e.state != notReady, e.state == terminating))
			}
		}
		fmt.Fprintf(text, `---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {namespace: test, name: s%d-%s, labels: {kubernetes.io/service-name: s%d}}
addressType: %s
ports: [{name: u, port: %d, protocol: UDP}]
endpoints: [%s]
`, s.number, strings.ToLower(family), s.number, family, port, strings.Join(list, ", "))
	}
}

// announces reports whether a node is to announce the addresses.
func (s *changingService) announces(node int) bool {
	if !s.exists {
		return false
	}
	has := func(state int, here bool) bool {
		return slices.ContainsFunc(s.endpoints, func(e changingEndpoint) bool { return e.state == state && (!here || e.node == node) })
	}
	if has(ready, false) {
		return has(ready, s.local)
	}
	return has(terminating, s.local)
}

// settled waits until the router has exactly the routes that follow from the Services.
func (c *changingFleet) settled() {
	c.t.Helper()
	deadline := time.Now().Add(patience.For(30 * time.Second))
	for _, s := range c.services {
		for k, of := range []func(network, host uint8) netip.Addr{netlab.Host4, netlab.Host6} {
			var want []netip.Addr
			for i := range c.nodes {
				if !c.drained[i] && s.announces(i) {
					want = append(want, of(netlab.FleetNet, uint8(netlab.FleetFirstNode+i)))
				}
			}
			a := s.addresses()[k]
			for {
				got, err := router.NextHops(c.Router, netip.PrefixFrom(a, a.BitLen()))
				must(c.t, err)
				if slices.Equal(got, want) {
					break
				}
				if time.Now().After(deadline) {
					c.t.Fatalf("%v goes to %v, want %v: %+v, drained %v", a, got, want, *s, c.drained)
				}
				time.Sleep(5 * time.Millisecond)
			}
		}
	}
}

// unserved is the number of packets that nodes got and did not serve. Those that nobody answered
// are as many.
func (c *changingFleet) unserved() (sum uint64) {
	c.t.Helper()
	time.Sleep(patience.For(200 * time.Millisecond)) // workers publish their counters
	count := func(node int, what string, n uint64) {
		if n > 0 {
			c.t.Logf("node %d: %s: %d", node+1, what, n)
			sum += n
		}
	}
	for i, capture := range c.captures {
		frames, missed := capture.Stop()
		count(i, "frames beyond the limit of the capture", uint64(missed))
		passed := map[netip.Addr]uint64{}
		for _, f := range frames {
			if a, ok := destination(f); ok {
				passed[a]++
			}
		}
		for a, n := range passed {
			count(i, fmt.Sprintf("past the packet path to the kernel, for %v", a), n)
		}
		s, err := c.nodes[i].admin.Status(context.Background())
		must(c.t, err)
		for reason, n := range s.Drops {
			if n -= c.before[i].Drops[reason]; n > 0 {
				list, err := c.nodes[i].admin.Drops(context.Background(), &api.DropFilter{Reason: reason})
				must(c.t, err)
				count(i, fmt.Sprintf("dropped, %s, such as %+v", reason, list), n)
			}
		}
		for _, k := range []counter.Counter{counter.Punted, counter.ICMPErrors} {
			n := uint64(0)
			for w := range s.Workers {
				n += s.Workers[w].Counters[k] - c.before[i].Workers[w].Counters[k]
			}
			count(i, k.Info().Field, n)
		}
	}
	now, err := c.Router.Counters()
	must(c.t, err)
	d := now.Sub(c.noRoute)
	none := d["IpExtInNoRoutes"] + d["Ip6InNoRoutes"]
	sent, answered := c.traffic.sent.Load(), c.traffic.answered.Load()
	lost := sent - none - answered
	c.report("  datagrams sent %d, without a route at the router %d, answered %d, lost %d, not served by a node %d\n", sent, none, answered, lost, sum)
	if lost > sum {
		c.t.Errorf("%d packets were lost elsewhere", lost-sum)
	}
	if answered < sent/3 || none == 0 {
		c.t.Error("the changes did not reach the traffic")
	}
	return sum
}

// destination is the destination of an IP packet in a frame, if it is a load balancer IP.
func destination(f []byte) (netip.Addr, bool) {
	var a netip.Addr
	switch {
	case len(f) >= 34 && f[12] == 0x08 && f[13] == 0x00:
		a, _ = netip.AddrFromSlice(f[30:34])
	case len(f) >= 54 && f[12] == 0x86 && f[13] == 0xdd:
		a, _ = netip.AddrFromSlice(f[38:54])
	}
	return a, netip.MustParsePrefix("10.99.0.0/24").Contains(a) || netip.MustParsePrefix("fd99::/64").Contains(a)
}
