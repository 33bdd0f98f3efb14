package bgp_test

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weirlb/weir/lb/announce"
	"github.com/weirlb/weir/lb/announce/bgp"
	"github.com/weirlb/weir/perf/netlab"
	"github.com/weirlb/weir/perf/netlab/labtest"
	"github.com/weirlb/weir/perf/netlab/patience"
	"github.com/weirlb/weir/perf/netlab/router"
)

// speakerConfig is the environment variable with the configuration of a process that runs a
// Speaker: its goroutines must all be in the namespace.
const speakerConfig = "BGP_TEST_SPEAKER"

func TestMain(m *testing.M) {
	if text := os.Getenv(speakerConfig); text != "" {
		if err := speak(text); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	// The tests have fleets of their own, and wait for the timers of BGP most of the time.
	flag.Parse()
	if err := flag.Set("test.parallel", "6"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	os.Exit(m.Run())
}

// speak sets the routes or neighbors of each line of its input, and writes the peers. "leave": Leave, "settled":
// Settled.
func speak(text string) error {
	var cfg bgp.Config
	if err := json.Unmarshal([]byte(text), &cfg); err != nil {
		return err
	}
	cfg.Log = slog.New(slog.NewTextHandler(os.Stderr, nil))
	s, err := bgp.New(cfg)
	if err != nil {
		return err
	}
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		line := in.Text()
		if line == "leave" {
			return s.Leave()
		}
		if line == "settled" {
			s.Settled(true)
			line = ""
		}
		if strings.HasPrefix(line, "{") {
			var list struct{ Neighbors []bgp.Neighbor }
			if err := json.Unmarshal([]byte(line), &list); err != nil {
				return err
			}
			if err := s.SetNeighbors(list.Neighbors); err != nil {
				return err
			}
		} else if line != "" {
			var want []announce.Route
			if err := json.Unmarshal([]byte(line), &want); err != nil {
				return err
			}
			if err := s.Set(want); err != nil {
				return err
			}
		}
		if err := json.NewEncoder(os.Stdout).Encode(s.Peers()); err != nil {
			return err
		}
	}
	return s.Close()
}

// speaker is a process with a Speaker in a node of a fleet.
type speaker struct {
	*netlab.Process
	in  io.Writer
	out *bufio.Scanner
}

func start(t *testing.T, n *netlab.Namespace, neighbors ...bgp.Neighbor) *speaker {
	t.Helper()
	return startAs(t, n, router.NodeASN, neighbors...)
}

func startAs(t *testing.T, n *netlab.Namespace, asn uint32, neighbors ...bgp.Neighbor) *speaker {
	t.Helper()
	for i := range neighbors {
		n := &neighbors[i]
		n.ASN, n.Hold = router.ASN, cmp.Or(n.Hold, 9*time.Second)
		n.Keepalive = n.Hold / 3
	}
	return startWith(t, n, bgp.Config{ASN: asn, Neighbors: neighbors})
}

func startWith(t *testing.T, n *netlab.Namespace, cfg bgp.Config) *speaker {
	t.Helper()
	cfg.RouterID = netip.AddrFrom4([4]byte{10, 255, 1, n.Name()[len(n.Name())-1] - '0'})
	text, err := json.Marshal(&cfg)
	must(t, err)
	cmd := exec.Command(os.Args[0])
	cmd.Env, cmd.Stderr = append(os.Environ(), speakerConfig+"="+string(text)), os.Stderr
	in, err := cmd.StdinPipe()
	must(t, err)
	out, err := cmd.StdoutPipe()
	must(t, err)
	s := &speaker{in: in, out: bufio.NewScanner(out)}
	s.Process, err = n.Start(cmd)
	must(t, err)
	return s
}

// set sets routes, nil for none, and asks for the peers.
func (s *speaker) set(t *testing.T, routes ...announce.Route) []announce.Peer {
	t.Helper()
	b, err := json.Marshal(routes)
	must(t, err)
	return s.say(t, string(b))
}

func (s *speaker) say(t *testing.T, line string) (peers []announce.Peer) {
	t.Helper()
	_, err := fmt.Fprintln(s.in, line)
	must(t, err)
	if !s.out.Scan() {
		t.Fatalf("the speaker has ended: %v", s.out.Err())
	}
	must(t, json.Unmarshal(s.out.Bytes(), &peers))
	return peers
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func newFleet(t *testing.T, nodes int) *netlab.Fleet {
	t.Helper()
	labtest.Require(t)
	f, err := netlab.NewFleet(nodes)
	must(t, err)
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
	return f
}

var (
	vip4 = netip.MustParsePrefix("10.99.0.10/32")
	vip6 = netip.MustParsePrefix("fd99::10/128")
)

func node4(i int) netip.Addr { return netlab.Host4(netlab.FleetNet, uint8(netlab.FleetFirstNode+i)) }
func node6(i int) netip.Addr { return netlab.Host6(netlab.FleetNet, uint8(netlab.FleetFirstNode+i)) }

// untilHops waits until the router's route has these next hops.
func untilHops(t *testing.T, f *netlab.Fleet, p netip.Prefix, want ...netip.Addr) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience.For(30*time.Second))
	defer cancel()
	for {
		got, err := router.NextHops(f.Router, p)
		must(t, err)
		if slices.Equal(got, want) {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("%s has next hops %v, want %v", p, got, want)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// started starts a router, and shows its log when the test fails.
func started(t *testing.T, r *router.Router, err error) *router.Router {
	t.Helper()
	must(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(r.Log())
		}
	})
	return r
}

func requireFRR(t *testing.T) {
	t.Helper()
	if err := router.FRRAvailable(); err != nil {
		labtest.Skip(t, err)
	}
}

// bothFamilies are sessions of a node with the router, per family.
func bothFamilies(password string) []bgp.Neighbor {
	return []bgp.Neighbor{
		{Address: netlab.Host4(netlab.FleetNet, netlab.FleetRouter), Password: password},
		{Address: netlab.Host6(netlab.FleetNet, netlab.FleetRouter), Password: password},
	}
}

// Two nodes announce an address, withdraw it and die, with every kind of router.
func TestWireRoutersFollow(t *testing.T) {
	addresses := []netip.Addr{node4(0), node4(1), node6(0), node6(1)}
	for name, c := range map[string]struct {
		available func() error
		start     func(*netlab.Fleet) (*router.Router, error)
		password  string
	}{
		"FRR, named neighbors": {router.FRRAvailable, func(f *netlab.Fleet) (*router.Router, error) {
			return router.StartFRR(f.Router, f.Dir(), router.FRR(router.Neighbors{Addresses: addresses}))
		}, ""},
		"FRR, listen range, MD5": {router.FRRAvailable, func(f *netlab.Fleet) (*router.Router, error) {
			ranges := []netip.Prefix{netip.MustParsePrefix("10.60.0.0/24"), netip.MustParsePrefix("fd60::/64")}
			return router.StartFRR(f.Router, f.Dir(), router.FRR(router.Neighbors{Ranges: ranges, Password: "secret"}))
		}, "secret"},
		"BIRD": {router.BIRDAvailable, func(f *netlab.Fleet) (*router.Router, error) {
			return router.StartBIRD(f.Router, f.Dir(), router.BIRD(router.Neighbors{Addresses: addresses}))
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			if err := c.available(); err != nil {
				labtest.Skip(t, err)
			}
			f := newFleet(t, 2)
			r, err := c.start(f)
			started(t, r, err)
			a, b := start(t, f.Nodes[0], bothFamilies(c.password)...), start(t, f.Nodes[1], bothFamilies(c.password)...)
			both := []announce.Route{{Prefix: vip4}, {Prefix: vip6}}
			a.set(t, both...)
			b.set(t, both...)
			untilHops(t, f, vip4, node4(0), node4(1))
			untilHops(t, f, vip6, node6(0), node6(1))
			for _, p := range a.say(t, "") {
				if !p.Established || p.Routes != 1 || p.Ends != 0 {
					t.Errorf("peer %+v", p)
				}
			}
			a.set(t, both[1])
			untilHops(t, f, vip4, node4(1))
			a.set(t, both...)
			untilHops(t, f, vip4, node4(0), node4(1))
			must(t, a.Kill()) // no NOTIFICATION: the kernel closes the connection
			untilHops(t, f, vip4, node4(1))
			untilHops(t, f, vip6, node6(1))
		})
	}
}

// A session that ends with the router comes back with the routes, and is said to be down
// meanwhile.
func TestWireSessionComesBack(t *testing.T) {
	requireFRR(t)
	t.Parallel()
	f := newFleet(t, 1)
	text := router.FRR(router.Neighbors{Addresses: []netip.Addr{node4(0)}})
	r, err := router.StartFRR(f.Router, f.Dir(), text)
	started(t, r, err)
	s := start(t, f.Nodes[0], bothFamilies("")[0])
	s.set(t, announce.Route{Prefix: vip4})
	untilHops(t, f, vip4, node4(0))
	must(t, r.Kill())
	deadline := time.Now().Add(patience.For(20 * time.Second))
	for {
		p := s.say(t, "")[0]
		if !p.Established && p.Ends == 1 && p.Reason != "" {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("after the router's end: %+v", p)
		}
		time.Sleep(20 * time.Millisecond)
	}
	must(t, f.Router.Netlink().LinkSetDown(mustLink(t, f, "br0")))
	must(t, os.RemoveAll(f.Dir()+"/frr-router"))
	must(t, f.Router.Netlink().LinkSetUp(mustLink(t, f, "br0")))
	r, err = router.StartFRR(f.Router, f.Dir(), text)
	started(t, r, err)
	untilHops(t, f, vip4, node4(0))
}

// Attributes arrive as they were given, and change without a withdrawal.
func TestWireAttributes(t *testing.T) {
	requireFRR(t)
	t.Parallel()
	f := newFleet(t, 1)
	r, err := router.StartFRR(f.Router, f.Dir(), router.FRR(router.Neighbors{Addresses: []netip.Addr{node4(0)}}))
	started(t, r, err)
	s := start(t, f.Nodes[0], bothFamilies("")[0])
	med := uint32(50)
	aggregate := netip.MustParsePrefix("10.99.0.0/24")
	s.set(t, announce.Route{Prefix: aggregate, Attributes: announce.Attributes{
		Communities: []uint32{65001<<16 | 100}, LargeCommunities: [][3]uint32{{65001, 1, 2}}, MED: &med, Prepend: 2,
	}})
	untilHops(t, f, aggregate, node4(0))
	got := shown(t, r, aggregate)
	if want := "65001 65001 65001 med 50 65001:100 65001:1:2"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	s.set(t, announce.Route{Prefix: aggregate})
	deadline := time.Now().Add(patience.For(20 * time.Second))
	for shown(t, r, aggregate) != "65001 med 0  " {
		if time.Now().After(deadline) {
			t.Fatalf("after the change: %q", shown(t, r, aggregate))
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// shown is a path as FRR has it.
func shown(t *testing.T, r *router.Router, p netip.Prefix) string {
	t.Helper()
	type text struct {
		String string `json:"string"`
	}
	var got struct {
		Paths []struct {
			ASPath         text `json:"aspath"`
			Metric         int  `json:"metric"`
			Community      text `json:"community"`
			LargeCommunity text `json:"largeCommunity"`
		} `json:"paths"`
	}
	must(t, r.VTYSH("show bgp ipv4 unicast "+p.String()+" json", &got))
	if len(got.Paths) != 1 {
		t.Fatalf("%d paths", len(got.Paths))
	}
	x := got.Paths[0]
	return fmt.Sprintf("%s med %d %s %s", x.ASPath.String, x.Metric, x.Community.String, x.LargeCommunity.String)
}

// Routes of a router are neither installed nor sent on to another router.
func TestWireRoutesOfRoutersAreRefused(t *testing.T) {
	requireFRR(t)
	t.Parallel()
	f := newFleet(t, 1)
	text := router.FRR(router.Neighbors{Addresses: []netip.Addr{node4(0), node6(0)}})
	const own = " address-family ipv4 unicast\n  network 198.51.100.0/24\n"
	text = strings.Replace(text, " address-family ipv4 unicast\n", own, 1)
	r, err := router.StartFRR(f.Router, f.Dir(), text)
	started(t, r, err)
	s := start(t, f.Nodes[0], bothFamilies("")...)
	s.set(t, announce.Route{Prefix: vip4})
	untilHops(t, f, vip4, node4(0)) // by then the router has sent its route
	var sent struct {
		Total int `json:"totalPrefixCounter"`
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience.For(20*time.Second))
	defer cancel()
	must(t, s.Until(ctx, func(context.Context) error {
		if err := r.VTYSH("show bgp ipv4 unicast neighbors "+node4(0).String()+" advertised-routes json", &sent); err != nil {
			return err
		}
		if sent.Total == 0 {
			return fmt.Errorf("the router has sent %d routes", sent.Total)
		}
		return nil
	}))
	foreign := netip.MustParsePrefix("198.51.100.0/24")
	hops, err := router.NextHops(f.Nodes[0], foreign)
	must(t, err)
	if p := s.say(t, "")[0]; len(hops) > 0 || p.Routes != 1 {
		t.Errorf("next hops %v, %d routes sent", hops, p.Routes)
	}
}
