package e2e

import (
	"net"
	"net/netip"
	"testing"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/perf/netlab"
	"github.com/weirlb/weir/perf/netlab/workload"
)

// nat is a NAT table of the edge node's kernel, which also forwards IPv4.
func (f *fixture) nat(t *testing.T, rules func(c *nftables.Conn, table *nftables.Table, pre, post *nftables.Chain)) {
	t.Helper()
	c, err := nftables.New(nftables.WithNetNSFd(int(f.Edge.Edge.Handle())))
	must(t, err)
	table := c.AddTable(&nftables.Table{Family: nftables.TableFamilyIPv4, Name: "like-kube-proxy"})
	pre := c.AddChain(&nftables.Chain{Name: "pre", Table: table, Type: nftables.ChainTypeNAT,
		Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityNATDest})
	post := c.AddChain(&nftables.Chain{Name: "post", Table: table, Type: nftables.ChainTypeNAT,
		Hooknum: nftables.ChainHookPostrouting, Priority: nftables.ChainPriorityNATSource})
	rules(c, table, pre, post)
	must(t, c.Flush())
	must(t, f.Edge.Edge.SetSysctl("net/ipv4/ip_forward", "1"))
	for _, ifname := range []string{"eth0", "eth1"} { // set one by one by the lab
		must(t, f.Edge.Edge.SetSysctl("net/ipv4/conf/"+ifname+"/forwarding", "1"))
	}
}

// masqueradeTo masquerades what goes to an address.
func masqueradeTo(table *nftables.Table, post *nftables.Chain, a netip.Addr) *nftables.Rule {
	return &nftables.Rule{Table: table, Chain: post, Exprs: []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: 16, Len: 4},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: a.AsSlice()},
		&expr.Masq{},
	}}
}

// likeKubeProxy has the edge node's kernel serve a TCP port of a Service as
// kube-proxy does, by DNAT and masquerade.
func (f *fixture) likeKubeProxy(t *testing.T, s service, port, target uint16) {
	t.Helper()
	f.nat(t, func(c *nftables.Conn, table *nftables.Table, pre, post *nftables.Chain) {
		c.AddRule(&nftables.Rule{Table: table, Chain: pre, Exprs: []expr.Any{
			&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: 16, Len: 4},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: s.lbIP(false).AsSlice()},
			&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binaryutil.BigEndian.PutUint16(port)},
			&expr.Immediate{Register: 1, Data: s.endpoints[0].addr(false).AsSlice()},
			&expr.Immediate{Register: 2, Data: binaryutil.BigEndian.PutUint16(target)},
			&expr.NAT{Type: expr.NATTypeDestNAT, Family: unix.NFPROTO_IPV4, RegAddrMin: 1, RegProtoMin: 2, Specified: true},
		}})
		c.AddRule(masqueradeTo(table, post, s.endpoints[0].addr(false)))
	})
}

// Connections that kube-proxy began before Weir came live on, also one whose source port,
// which masquerade keeps, is in Weir's range; after Weir has gone kube-proxy takes new ones
// again.
func TestWireTakeoverFromTheKernel(t *testing.T) {
	f := ownFixture(t, options{services: []service{toAttached}, stopped: true})
	f.likeKubeProxy(t, toAttached, echoPort, echoTarget)
	f.takesOver(t, func() {})
}

// takesOver starts Weir, and ends it, beside a kernel that serves echoes. While both serve,
// beside is called.
func (f *fixture) takesOver(t *testing.T, beside func()) {
	t.Helper()
	dial := func(port int) net.Conn {
		t.Helper()
		d := &net.Dialer{LocalAddr: &net.TCPAddr{IP: clientAddr(false).AsSlice(), Port: port}}
		c, err := f.Client.DialWith(inTime(t, within), d, "tcp", toAttached.at(echoPort, false).String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	ping := func(c net.Conn, when string) {
		t.Helper()
		if err := workload.PingPong(c, when, within); err != nil {
			t.Errorf("%s: %v", when, err)
		}
	}
	kernels := map[string]net.Conn{"from a port of the kernel": dial(40000), "from a port of Weir": dial(62000)}
	pingAll := func(when string) {
		t.Helper()
		for from, c := range kernels {
			ping(c, "the kernel's connection "+from+" "+when)
		}
	}
	pingAll("before Weir")
	if err := f.start(); err != nil {
		t.Fatal(err)
	}
	weirs := dial(0)
	ping(weirs, "a new connection")
	pingAll("beside Weir")
	if n := f.flows(t); n != 1 {
		t.Errorf("Weir has %d flows, want the new connection's", n)
	}
	beside()
	if err := f.weir.Stop(within); err != nil {
		t.Fatal(err)
	}
	pingAll("after Weir")
	ping(dial(0), "a new connection after Weir")
}

// Beside Weir the kernel translates what a pod sends to another node, as network plugins have
// it: also from a port in Weir's range.
func TestWirePodsAreMasqueradedBesideWeir(t *testing.T) {
	f := ownFixture(t, options{services: []service{toRouted}})
	f.nat(t, func(c *nftables.Conn, table *nftables.Table, _, post *nftables.Chain) {
		c.AddRule(masqueradeTo(table, post, attached.addr(false)))
	})
	to := netip.AddrPortFrom(attached.addr(false), echoTarget).String()
	for _, port := range []int{40000, 62000} {
		local := &net.TCPAddr{IP: pod.addr(false).AsSlice(), Port: port}
		c, err := f.Pod.DialWith(inTime(t, within), &net.Dialer{LocalAddr: local}, "tcp", to)
		if err != nil {
			t.Errorf("TCP from port %d: %v; %s", port, err, f.whatWasDropped())
			continue
		}
		defer c.Close()
		if err := workload.PingPong(c, "to another node", within); err != nil {
			t.Errorf("TCP from port %d: %v; %s", port, err, f.whatWasDropped())
		}

		d := &net.Dialer{LocalAddr: &net.UDPAddr{IP: local.IP, Port: port}}
		u, err := f.Pod.DialWith(inTime(t, within), d, "udp", to)
		must(t, err)
		defer u.Close()
		if err := workload.PingPong(u, "a datagram", within); err != nil {
			t.Errorf("UDP from port %d: %v; %s", port, err, f.whatWasDropped())
		}
	}
}

// Without takeover an unknown connection is reset.
func TestWireNoTakeover(t *testing.T) {
	f := ownFixture(t, options{services: []service{toAttached}, stopped: true})
	f.likeKubeProxy(t, toAttached, echoPort, echoTarget)
	c, err := f.Client.DialContext(inTime(t, within), "tcp", toAttached.at(echoPort, false).String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := workload.PingPong(c, "before", within); err != nil {
		t.Fatal(err)
	}
	f.opts.takeover = "takeoverSeconds: 0"
	if err := f.configure(); err != nil {
		t.Fatal(err)
	}
	if err := f.start(); err != nil {
		t.Fatal(err)
	}
	if err := workload.PingPong(c, "after", within); err == nil || workload.Kind(err) != workload.KindReset {
		t.Errorf("got %v, want a reset", err)
	}
}

// flows is the number of flows in Weir's table.
func (f *fixture) flows(t *testing.T) uint64 {
	t.Helper()
	status, err := f.admin.Status(inTime(t, within))
	if err != nil {
		t.Fatal(err)
	}
	return status.Flows.Current
}

// SNAT addresses of Weir's own, held by no interface and announced by another
// process, give it all ports.
func TestWireSNATAddressOfItsOwn(t *testing.T) {
	own4, own6 := netlab.Host4(netlab.FabricNet, 77), netlab.Host6(netlab.FabricNet, 77)
	f := ownFixture(t, options{services: kinds, extra: "snat: {addresses: [\"" + own4.String() + "\", \"" + own6.String() + "\"]}"})
	speaker, err := netlab.NewResponder(f.Edge.Edge, "eth1", own4, own6)
	if err != nil {
		t.Fatal(err)
	}
	defer speaker.Close()
	bothFamilies(t, func(t *testing.T, six bool) {
		want := own4
		if six {
			want = own6
		}
		transfer := &workload.Transfer{Namespace: f.Client, Target: toAttached.at(httpPort, six), Bytes: 100_000}
		if err := transfer.Download(inTime(t, within)); err != nil {
			t.Fatal(err)
		}
		if host, _, err := net.SplitHostPort(transfer.SeenAs()); err != nil || host != want.String() {
			t.Errorf("the server saw %s, want %s", transfer.SeenAs(), want)
		}
		f.checkLoad(t, f.Client, toRouted.at(httpPort, six), 20)
		f.checkLoad(t, f.Client, toPod.at(httpPort, six), 20)
	})
}
