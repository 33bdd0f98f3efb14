package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/perf/netlab"
	"github.com/weirlb/weir/perf/netlab/patience"
	"github.com/weirlb/weir/perf/netlab/router"
	"github.com/weirlb/weir/perf/netlab/weirtest"
)

const (
	keepNodes     = 4
	firstClient   = 2 // the host on FleetClientNet
	secondClient  = 3
	noDrain       = "{notReadySeconds: 0, timeoutSeconds: 0}"
	manyEndpoints = 100
	// newHost is the endpoint that replaces another.
	newHost = netlab.FleetServer - manyEndpoints
	dies    = 0 // the node that is killed
)

// busyFleet is a fleet with many connections to many endpoints, in a mode that answers past it.
type busyFleet struct {
	*bed
	mode        string
	clients     *child
	connections int
	long        bool
}

// Of all connections none is lost when a node is killed. The long form repeats that with an
// endpoint that is replaced before, and compares the lost connections with a simulation.
func TestWireFleetKeepsConnections(t *testing.T) {
	for _, mode := range []string{"ipip", "gue"} {
		t.Run(mode, func(t *testing.T) { keepsConnections(t, mode) })
	}
}

func keepsConnections(t *testing.T, mode string) {
	c := &busyFleet{mode: mode, connections: 400}
	endpoints := 12
	if text := os.Getenv("WEIR_FLEET_CONNECTIONS"); text != "" {
		n, err := strconv.Atoi(text)
		must(t, err)
		c.connections, c.long, endpoints = n, true, manyEndpoints
	}
	c.bed = newRouted(t, keepNodes, bgpSessions())
	c.build(endpoints)
	l := c.kill(firstClient, nil)
	c.report("%d connections over %d nodes in %s, %d endpoints, of which none changes; node %d is killed\n%s", c.connections, keepNodes, mode, endpoints, dies+1, l)
	if l.lost > 0 || l.opened != c.connections {
		t.Errorf("connections were lost: %s\n%s", l, l.first)
	}
	if l.moved == 0 || l.moved == l.movedLiving {
		t.Errorf("no connection was on the node that died:\n%s", l)
	}
	if !c.long {
		return
	}
	expected := c.simulated()
	c.start(dies, noDrain)
	c.nodes[dies], c.nodes = c.nodes[keepNodes], c.nodes[:keepNodes]
	c.until(0, 1, 2, 3)
	l = c.kill(secondClient, c.replace)
	c.report("the same, but 1 endpoint of %d is replaced before\n%s", endpoints, l)
	shares := expected[l.position]
	if shares == nil { // the formula is symmetric
		shares = expected[keepNodes+1-l.position]
	}
	c.compare(l, shares)
}

// build adds endpoints and starts the nodes and the clients.
func (c *busyFleet) build(endpoints int) {
	t := c.t
	c.hosts, c.annotations = nil, "{weir.dev/forwarding-mode: "+c.mode+"}"
	var servers []server
	for i := range endpoints {
		host := uint8(netlab.FleetServer - i)
		c.hosts = append(c.hosts, host)
		servers = append(servers, c.server(host))
	}
	if c.long {
		servers = append(servers, c.server(newHost))
	}
	ready := 0
	c.child(c.Server, "endpoints").call(servers, &ready)
	c.clients = c.child(c.Client, "clients")
	// Of a second client, whose connections have other tuples.
	must(t, c.Client.AddAddr("eth0", netip.PrefixFrom(netlab.Host4(netlab.FleetClientNet, secondClient), 24)))
	must(t, c.Client.AddAddr("eth0", netip.PrefixFrom(netlab.Host6(netlab.FleetClientNet, secondClient), 64)))
	for i := range keepNodes {
		c.start(i, noDrain)
	}
	c.until(0, 1, 2, 3)
}

func (c *busyFleet) server(host uint8) server {
	n, name := c.Server, fmt.Sprint(host)
	if host != netlab.FleetServer {
		var err error
		n, err = c.AddServer("server"+name, host)
		must(c.t, err)
	}
	return server{name, n.Path()}
}

// use is a use of all connections, which are new ones from a host of the client's network unless
// that is 0.
func (c *busyFleet) use(host uint8) (out []client) {
	c.t.Helper()
	v := round{PerSec: 1000, Within: patience.For(10 * time.Second), Progress: c.long}
	if host != 0 {
		v.Open, v.PerSec = c.connections, 500
		v.Sources = []netip.Addr{netlab.Host4(netlab.FleetClientNet, host), netlab.Host6(netlab.FleetClientNet, host)}
		v.Targets = []netip.AddrPort{netip.AddrPortFrom(vip4, port), netip.AddrPortFrom(vip6, port)}
		if c.long { // by IPv4 alone: the kernel has 1,024 neighbors of IPv6 on the whole machine
			v.Sources, v.Targets = v.Sources[:1], v.Targets[:1]
		}
	}
	c.clients.call(v, &out)
	return out
}

// loss is the outcome of the death of a node.
type loss struct {
	opened     int // connections that were in use before
	onReplaced int // of these those on the endpoint that was replaced
	// The rest is of connections on endpoints that live.
	moved        int // to another node
	movedLiving  int // of these those from a node that lives
	changed      int // of the moved those for which the other node chose another endpoint
	lost         int
	unexplained  int // lost, but not changed
	saved        int // changed, but not lost
	lostReplaced int
	kinds        map[string]int
	first        string // error
	follows      time.Duration
	// position is that of the node among the next hops of the router, from 1: behind
	// hash-threshold the loss of the first and the last moves most flows.
	position int
}

func (l *loss) living() int { return l.opened - l.onReplaced }

func (l *loss) percent(n int) float64 { return 100 * float64(n) / float64(max(l.living(), 1)) }

func (l *loss) String() string {
	text := fmt.Sprintf("  the router follows after                   %6d ms\n  its next hop of %d                         %6d\n", l.follows.Milliseconds(), keepNodes, l.position)
	for _, line := range []struct {
		what string
		n    int
	}{
		{"on endpoints that live", l.living()}, {"moved to another node", l.moved}, {"moved from a node that lives", l.movedLiving},
		{"moved, and to another endpoint", l.changed}, {"lost", l.lost},
	} {
		text += fmt.Sprintf("  connections %-30s %6d  %6.3f %%\n", line.what, line.n, l.percent(line.n))
	}
	if l.onReplaced > 0 {
		text += fmt.Sprintf("  apart: connections on the replaced endpoint %5d, lost %d\n", l.onReplaced, l.lostReplaced)
	}
	if l.lost+l.saved > 0 {
		text += fmt.Sprintf("  lost by kind %v; lost without a change of the endpoint: %d; changed and not lost: %d\n", l.kinds, l.unexplained, l.saved)
	}
	return text
}

// kill opens connections from a host, calls change, if not nil, which returns the endpoint that
// leaves, and kills a node.
func (c *busyFleet) kill(host uint8, change func() string) *loss {
	c.t.Helper()
	before := c.use(host)
	replaced := ""
	if change != nil {
		replaced = change()
		for i, now := range c.use(0) {
			if now.Failure != "" && before[i].Failure == "" && now.Endpoint != replaced {
				c.t.Errorf("lost before the node died: %+v", now)
			}
		}
	}
	was := c.whereabouts(0, 1, 2, 3)
	hops, err := router.HopsInOrder(c.Router, netip.PrefixFrom(vip4, 32))
	must(c.t, err)
	l := &loss{kinds: map[string]int{}, position: 1 + slices.Index(hops, netlab.Host4(netlab.FleetNet, netlab.FleetFirstNode+dies))}
	must(c.t, c.nodes[dies].Kill())
	l.follows = c.until(1, 2, 3)
	after := c.use(0)
	is := c.whereabouts(1, 2, 3)
	for i := range before {
		if before[i].Failure != "" {
			c.t.Errorf("not opened: %s", before[i].Error)
			continue
		}
		l.add(&after[i], replaced, was[after[i].Address], is[after[i].Address])
	}
	return l
}

// add enters a connection, and the endpoints that it had at the nodes before and after.
func (l *loss) add(c *client, replaced string, was, is map[int]netip.Addr) {
	l.opened++
	if c.Endpoint == replaced {
		l.onReplaced++
		if c.Failure != "" {
			l.lostReplaced++
		}
		return
	}
	moved, changed := false, false
	for node, endpoint := range is {
		if _, had := was[node]; had {
			continue
		}
		moved = true
		changed = changed || endpoint.String() != "10.60.0."+c.Endpoint && endpoint.String() != "fd60::"+c.Endpoint
	}
	count := func(n *int, is bool) {
		if is {
			*n++
		}
	}
	_, onDead := was[dies]
	count(&l.moved, moved)
	count(&l.movedLiving, moved && !onDead)
	count(&l.changed, changed)
	count(&l.saved, changed && c.Failure == "")
	if c.Failure != "" {
		l.lost++
		l.kinds[c.Failure]++
		count(&l.unexplained, !changed)
		if l.first == "" {
			l.first = fmt.Sprintf("%+v: before %v, after %v", *c, was, is)
		}
	}
}

// whereabouts are the nodes that have a connection, each with the endpoint.
func (c *busyFleet) whereabouts(nodes ...int) map[netip.AddrPort]map[int]netip.Addr {
	c.t.Helper()
	out := map[netip.AddrPort]map[int]netip.Addr{}
	for _, i := range nodes {
		_, err := c.nodes[i].admin.Connections(context.Background(), &api.FlowFilter{}, 0, 0, func(f *api.Flow) error {
			if out[f.Client] == nil {
				out[f.Client] = map[int]netip.Addr{}
			}
			out[f.Client][i] = f.Endpoint.Addr()
			return nil
		})
		must(c.t, err)
	}
	return out
}

// replace puts the new endpoint in the place of another at all nodes.
func (c *busyFleet) replace() string {
	gone := c.hosts[manyEndpoints/2]
	c.hosts = slices.Clone(c.hosts)
	c.hosts[manyEndpoints/2] = newHost
	for i, n := range c.nodes {
		c.manifest(n, true)
		ctx, cancel := context.WithTimeout(context.Background(), patience.For(20*time.Second))
		defer cancel()
		must(c.t, n.Until(ctx, func(ctx context.Context) error {
			for a, endpoint := range map[netip.Addr]netip.Addr{
				vip4: netlab.Host4(netlab.FleetNet, newHost), vip6: netlab.Host6(netlab.FleetNet, newHost),
			} {
				x, err := n.admin.ExplainAddress(ctx, a)
				if err != nil {
					return err
				}
				is := func(e api.FrontendEndpoint) bool { return e.Address == netip.AddrPortFrom(endpoint, port).String() }
				if len(x.Frontends) != 1 || !slices.ContainsFunc(x.Frontends[0].Endpoints, is) {
					return fmt.Errorf("node %d does not have %s", i+1, endpoint)
				}
			}
			return nil
		}))
	}
	return fmt.Sprint(gone)
}

// simulated are shares of lost connections, in percent, from `weirperf fleet` for the loss of the
// node at each position. They are of several seeds, which differ in the replaced endpoint.
func (c *busyFleet) simulated() (shares map[int][]float64) {
	shares = map[int][]float64{}
	for seed := range 3 {
		cmd := exec.Command(weirtest.Perf(c.t), "fleet", "--nodes", fmt.Sprint(keepNodes), "--endpoints", fmt.Sprint(manyEndpoints),
			"--churn", "1", "--ecmp", "threshold", "--older", "--lag", "0s", "--trials", fmt.Sprint(keepNodes),
			"--flows", "1000000", "--short", "--json", "--seed", fmt.Sprint(seed+1))
		out, err := cmd.Output()
		must(c.t, err)
		var r struct {
			RFC2992 []struct {
				Nodes, Position int
				FormulaPercent  float64
			}
			Cells []struct {
				Event string
				Moved struct{ Mean float64 } `json:"movedPercent"`
				DSR   struct{ Mean float64 } `json:"brokenDsrPercent"`
			}
		}
		must(c.t, json.Unmarshal(out, &r))
		for _, f := range r.RFC2992 {
			if f.Nodes == keepNodes {
				// The cell is the mean of all positions of the lost node.
				shares[f.Position] = append(shares[f.Position], f.FormulaPercent*r.Cells[0].DSR.Mean/r.Cells[0].Moved.Mean)
			}
		}
		if r.Cells[0].Event != "loss" || len(shares[2]) != seed+1 {
			c.t.Fatalf("the simulation does not have the loss of a node: %s", out)
		}
	}
	return shares
}

// compare compares the lost connections with the simulation. Beyond the bar of 20 % it allows
// for the chance that is in a count.
func (c *busyFleet) compare(l *loss, shares []float64) {
	mean := 0.0
	for _, s := range shares {
		mean += s / float64(len(shares))
	}
	expected := mean * float64(l.living()) / 100
	deviation := math.Sqrt(expected)
	c.report("  the simulation says                        %6.3f %% (%.3f .. %.3f): %.0f connections, standard deviation %.0f\n  lost compared with the simulation          %+6.1f %%\n",
		mean, slices.Min(shares), slices.Max(shares), expected, deviation, 100*(float64(l.lost)/expected-1))
	if off := math.Abs(float64(l.lost) - expected); off > 0.2*expected+2*deviation {
		c.t.Errorf("%d connections were lost, the simulation says %.0f", l.lost, expected)
	}
	if l.unexplained > 0 {
		c.t.Errorf("lost though the endpoint is the same: %s", l.first)
	}
}

// report prints figures, and appends them to the file of results.
func (c *bed) report(format string, args ...any) {
	c.t.Helper()
	text := fmt.Sprintf(format, args...)
	c.t.Log("\n" + strings.TrimSuffix(text, "\n"))
	file := os.Getenv("WEIR_FLEET_FIGURES")
	if file == "" {
		return
	}
	f, err := os.OpenFile(file, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	must(c.t, err)
	_, err = f.WriteString(text)
	must(c.t, errors.Join(err, f.Close()))
}
