package e2e

import (
	"net"
	"testing"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/perf/netlab"
	"github.com/weirlb/weir/perf/netlab/workload"
)

// likeKubeProxy has the edge node's kernel serve a TCP port of a Service as
// kube-proxy does, by DNAT and masquerade.
func (f *fixture) likeKubeProxy(t *testing.T, s service, port, target uint16) {
	t.Helper()
	c, err := nftables.New(nftables.WithNetNSFd(int(f.Edge.Edge.Handle())))
	if err != nil {
		t.Fatal(err)
	}
	table := c.AddTable(&nftables.Table{Family: nftables.TableFamilyIPv4, Name: "like-kube-proxy"})
	pre := c.AddChain(&nftables.Chain{Name: "pre", Table: table, Type: nftables.ChainTypeNAT,
		Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityNATDest})
	post := c.AddChain(&nftables.Chain{Name: "post", Table: table, Type: nftables.ChainTypeNAT,
		Hooknum: nftables.ChainHookPostrouting, Priority: nftables.ChainPriorityNATSource})
	c.AddRule(&nftables.Rule{Table: table, Chain: pre, Exprs: []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: 16, Len: 4},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: s.lbIP(false).AsSlice()},
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binaryutil.BigEndian.PutUint16(port)},
		&expr.Immediate{Register: 1, Data: s.endpoints[0].addr(false).AsSlice()},
		&expr.Immediate{Register: 2, Data: binaryutil.BigEndian.PutUint16(target)},
		&expr.NAT{Type: expr.NATTypeDestNAT, Family: unix.NFPROTO_IPV4, RegAddrMin: 1, RegProtoMin: 2, Specified: true},
	}})
	c.AddRule(&nftables.Rule{Table: table, Chain: post, Exprs: []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: 16, Len: 4},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: s.endpoints[0].addr(false).AsSlice()},
		&expr.Masq{},
	}})
	if err := c.Flush(); err != nil {
		t.Fatal(err)
	}
	if err := f.Edge.Edge.SetSysctl("net/ipv4/ip_forward", "1"); err != nil {
		t.Fatal(err)
	}
	for _, ifname := range []string{"eth0", "eth1"} { // set one by one by the lab
		if err := f.Edge.Edge.SetSysctl("net/ipv4/conf/"+ifname+"/forwarding", "1"); err != nil {
			t.Fatal(err)
		}
	}
}

// A connection that kube-proxy began before Weir came lives on, and after
// Weir has gone kube-proxy takes new ones again.
func TestWireTakeoverFromTheKernel(t *testing.T) {
	f := ownFixture(t, options{services: []service{toAttached}, stopped: true})
	f.likeKubeProxy(t, toAttached, echoPort, echoTarget)
	dial := func() net.Conn {
		t.Helper()
		c, err := f.Client.DialContext(inTime(t, within), "tcp", toAttached.at(echoPort, false).String())
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
	kernels := dial()
	ping(kernels, "the kernel's connection before Weir")
	if err := f.start(); err != nil {
		t.Fatal(err)
	}
	weirs := dial()
	ping(weirs, "a new connection")
	ping(kernels, "the kernel's connection beside Weir")
	if n := f.flows(t); n != 1 {
		t.Errorf("Weir has %d flows, want the new connection's", n)
	}
	if err := f.weir.Stop(within); err != nil {
		t.Fatal(err)
	}
	ping(kernels, "the kernel's connection after Weir")
	ping(dial(), "a new connection after Weir")
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
	speaker, err := f.Edge.Edge.Announce("eth1", own4, own6)
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
