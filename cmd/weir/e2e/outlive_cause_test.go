package e2e

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/weirlb/weir/perf/netlab"
	"github.com/weirlb/weir/perf/netlab/workload"
)

// checkRefused checks that the kernel answers a new connection as if nobody served there.
func (f *fixture) checkRefused(t *testing.T, to netip.AddrPort, when string) {
	t.Helper()
	c, err := f.Client.DialContext(inTime(t, within), "tcp", to.String())
	if err == nil {
		c.Close()
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("a new connection to %s %s: %v, want it refused", to, when, err)
	}
}

// A configuration that is loaded again takes frontends away, and their connections go on.
func TestWireConnectionsOutliveAChangedConfiguration(t *testing.T) {
	s := toAttached
	f := ownFixture(t, options{services: []service{s, toPod}})
	at := map[string]netip.AddrPort{}
	for _, six := range []bool{false, true} {
		at["by node port, "+family(six)] = s.atNode(echoPort, six)
		at["by load balancer IP, "+family(six)] = s.at(echoPort, six)
		at["to the pod, "+family(six)] = toPod.atNode(echoPort, six)
	}
	conns := map[string]net.Conn{}
	for name, to := range at {
		conns[name] = f.dialed(t, to)
	}
	all := len(f.services) * 4 * 2 * 2
	const nodePorts = "nodePortAddresses: "
	config := f.config()
	for _, c := range []struct {
		name, config string
		frontends    int
		refused      bool // at the node's ports
	}{
		{"nodePortAddresses", strings.Replace(config, nodePorts, nodePorts+"[198.51.100.0/24, \"2001:db8::/64\"] #", 1), all / 2, true},
		{"protectedPorts", config + fmt.Sprintf("protectedPorts: [22, %d, %d]\n", s.nodePort(echoPort), toPod.nodePort(echoPort)), all - 2*2*2, true},
		{"loadBalancerClass", config + "loadBalancerClass: example.com/other\n", all / 2, false},
	} {
		replace(t, f.path("config.yaml"), []byte(c.config))
		must(t, f.weir.Signal(syscall.SIGHUP))
		f.opts.frontends = c.frontends
		must(t, f.served(len(f.services)))
		f.checkAlive(t, conns, "without frontends by "+c.name)
		for name, to := range at {
			if c.refused && !strings.Contains(name, "load balancer") {
				f.checkRefused(t, to, "without frontends by "+c.name)
			}
		}
		replace(t, f.path("config.yaml"), []byte(config))
		must(t, f.weir.Signal(syscall.SIGHUP))
		f.opts.frontends = all
		must(t, f.served(len(f.services)))
		f.checkAlive(t, conns, "after the change of "+c.name)
		must(t, f.exchangeOnce(s, false))
	}
}

// Connections to a node port go on when the host gives the address up, as long as packets come.
func TestWireConnectionsOutliveAnAddressOfTheNode(t *testing.T) {
	s := toAttached
	f := ownFixture(t, options{services: []service{s, toPod}, stopped: true})
	var late []netip.Prefix
	client, err := f.Client.Interface("eth0")
	must(t, err)
	edge, err := f.Edge.Edge.Interface("eth0")
	must(t, err)
	for _, a := range []netip.Addr{netlab.Host4(netlab.ClientNet, 77), netlab.Host6(netlab.ClientNet, 77)} {
		late = append(late, netip.PrefixFrom(a, a.BitLen()))
		must(t, f.Edge.Edge.AddAddr("eth0", late[len(late)-1]))
		must(t, f.Client.Netlink().NeighSet(&netlink.Neigh{LinkIndex: client.Attrs().Index, State: netlink.NUD_PERMANENT,
			IP: a.AsSlice(), HardwareAddr: edge.Attrs().HardwareAddr}))
	}
	all := len(f.services) * 4 * 2 * 2
	f.opts.frontends = all + all/2
	must(t, f.start())
	conns := map[string]net.Conn{}
	for _, p := range late {
		for _, to := range []service{s, toPod} {
			conns[to.name+" at "+p.Addr().String()] = f.dialed(t, netip.AddrPortFrom(p.Addr(), to.nodePort(echoPort)))
		}
	}
	for _, p := range late {
		must(t, f.Edge.Edge.RemoveAddr("eth0", p))
	}
	f.opts.frontends = all
	must(t, f.served(len(f.services)))
	f.checkAlive(t, conns, "without the address")
	for _, p := range late {
		d := net.Dialer{Timeout: time.Second}
		if c, err := f.Client.DialWith(inTime(t, within), &d, "tcp", netip.AddrPortFrom(p.Addr(), s.nodePort(echoPort)).String()); err == nil {
			c.Close()
			t.Errorf("a new connection to %s, which the node gave up", p)
		}
	}
	for _, p := range late {
		must(t, f.Edge.Edge.AddAddr("eth0", p))
	}
	f.opts.frontends = all + all/2
	must(t, f.served(len(f.services)))
	f.checkAlive(t, conns, "with the address again")
}

// A Service that loses its frontends to an older Service that asks for them keeps its connections.
func TestWireConnectionsOutliveALostConflict(t *testing.T) {
	addrs := func(host uint8) []netip.Addr {
		return []netip.Addr{netlab.Host4(netlab.LBNet, host), netlab.Host6(netlab.LBNet, host)}
	}
	older := service{name: "earlier", index: 21, endpoints: []endpoint{attached}, lb: addrs(91)}
	loser := service{name: "loser", index: 22, endpoints: []endpoint{routed}, lb: addrs(90)}
	f := ownFixture(t, options{services: []service{older}})
	f.services = []service{older, loser}
	replace(t, f.manifest(), render(t, f.services))
	must(t, f.served(2))
	conns := map[string]net.Conn{}
	for _, six := range []bool{false, true} {
		conns["load balancer IP, "+family(six)] = f.dialed(t, loser.at(echoPort, six))
	}
	older.lb = addrs(90)
	f.services = []service{older, loser}
	replace(t, f.manifest(), render(t, f.services))
	lost := func(context.Context) error {
		s, err := f.admin.Status(inTime(t, within))
		if err == nil && !strings.Contains(problemsOf(s), "held by Service test/earlier") {
			err = errors.New(problemsOf(s))
		}
		return err
	}
	must(t, f.poll(lost))
	f.awaitServer(t, loser, "attached")
	f.checkAlive(t, conns, "while another Service has the address")
	must(t, f.weir.Kill())
	must(t, f.launch("config.yaml"))
	must(t, f.poll(lost))
	f.awaitServer(t, loser, "attached")
	f.checkAlive(t, conns, "after a restart")
}

// awaitServer waits until new connections to a Service reach a server, in both families.
func (f *fixture) awaitServer(t *testing.T, s service, want string) {
	t.Helper()
	must(t, f.poll(func(context.Context) error {
		for _, six := range []bool{false, true} {
			who, err := f.whoServes(s.at(httpPort, six))
			if err == nil && who != want {
				err = fmt.Errorf("%s answers, want %s", who, want)
			}
			if err != nil {
				return err
			}
		}
		return nil
	}))
}

// The control: with the kernel's NAT connections go on when the rule is gone, and new ones are refused.
func TestWireConnectionsOutliveARuleOfTheKernelsNAT(t *testing.T) {
	f := ownFixture(t, options{services: []service{toAttached}, stopped: true})
	rules := "table inet control {\nchain pre {\ntype nat hook prerouting priority dstnat;\n"
	to := map[string]netip.AddrPort{}
	for _, six := range []bool{false, true} {
		at, e, ip := toAttached.atNode(echoPort, six), netip.AddrPortFrom(attached.addr(six), echoTarget), "ip"
		if six {
			ip = "ip6"
		}
		rules += fmt.Sprintf("%s daddr %s tcp dport %d dnat %s to %s\n", ip, at.Addr(), at.Port(), ip, e)
		to[family(six)] = at
	}
	rules += "}\nchain post {\ntype nat hook postrouting priority srcnat;\noifname eth1 masquerade\n}\n}\n"
	nft := func(text string) error {
		return f.Edge.Edge.Do(func() error {
			out, err := exec.Command("nft", text).CombinedOutput()
			if err != nil {
				err = fmt.Errorf("%w: %s", err, out)
			}
			return err
		})
	}
	for _, key := range []string{"net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"} {
		must(t, f.Edge.Edge.SetSysctl(key, "1"))
	}
	must(t, nft(rules))
	conns := map[string]net.Conn{}
	for name := range to {
		conns[name] = f.dialed(t, to[name])
	}
	must(t, nft("flush chain inet control pre"))
	f.checkAlive(t, conns, "without the rule")
	for _, at := range to {
		f.checkRefused(t, at, "without the rule")
	}
}

// Clients on the node have no route to a load balancer IP once nobody serves it, and are told:
// those that send and those that only receive.
func TestWireConnectionsOfTheNodeEndWithTheirRoute(t *testing.T) {
	f := ownFixture(t, options{services: []service{toAttached, toRouted}})
	ended := make(chan error, 4)
	var downloads []*workload.Transfer
	ctx := inTime(t, 2*within)
	const rate = 1 << 20
	for _, six := range []bool{false, true} {
		d := &workload.Transfer{Namespace: f.Edge.Edge, Target: toAttached.at(httpPort, six), Bytes: rate << 20, Seed: 5, Rate: rate}
		downloads = append(downloads, d)
		go func() { ended <- d.Download(ctx) }()
	}
	waitMoved(t, ctx, downloads, rate/4)
	kept, err := f.Edge.Edge.DialContext(ctx, "tcp", toRouted.at(echoPort, false).String())
	must(t, err)
	defer kept.Close()
	f.services = []service{toRouted}
	replace(t, f.manifest(), render(t, f.services))
	must(t, f.served(1))
	for range downloads {
		select {
		case err := <-ended:
			if !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("a download: %v, want a reset", err)
			}
		case <-ctx.Done():
			t.Fatal("a download waits")
		}
	}
	f.checkAlive(t, map[string]net.Conn{"another Service": kept}, "beside")
}
