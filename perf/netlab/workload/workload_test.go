package workload

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/weirlb/weir/perf/netlab"
	"github.com/weirlb/weir/perf/netlab/labtest"
	"github.com/weirlb/weir/perf/netlab/patience"
)

// twoNodes is a client and a server that are joined by one link.
func twoNodes(t *testing.T) (client, server *netlab.Namespace, addrs []netip.Addr) {
	t.Helper()
	labtest.Require(t)
	lab, err := netlab.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := lab.Close(); err != nil {
			t.Error(err)
		}
	})
	for name, to := range map[string]**netlab.Namespace{"client": &client, "server": &server} {
		if *to, err = lab.Namespace(name); err != nil {
			t.Fatal(err)
		}
	}
	prefix := func(s string) netip.Prefix { return netip.MustParsePrefix(s) }
	err = netlab.Connect(
		netlab.End{Namespace: client, Name: "eth0", Addrs: []netip.Prefix{prefix("192.0.2.1/24"), prefix("2001:db8::1/64")}},
		netlab.End{Namespace: server, Name: "eth0", Addrs: []netip.Prefix{prefix("192.0.2.2/24"), prefix("2001:db8::2/64")}},
		netlab.LinkConfig{})
	if err != nil {
		t.Fatal(err)
	}
	return client, server, []netip.Addr{netip.MustParseAddr("192.0.2.2"), netip.MustParseAddr("2001:db8::2")}
}

func context10s(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience.For(10*time.Second))
	t.Cleanup(cancel)
	return ctx
}

func TestWireLoadCountsServersAndFailures(t *testing.T) {
	client, node, addrs := twoNodes(t)
	s, err := Serve(node, "one", "[::]:80")
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for _, keep := range []bool{false, true} {
		for _, serverCloses := range []bool{false, true} {
			if keep && serverCloses {
				continue
			}
			l := Load{Namespace: client, Concurrency: 4, Requests: 200, KeepAlive: keep, ServerCloses: serverCloses}
			for _, a := range addrs {
				l.Targets = append(l.Targets, netip.AddrPortFrom(a, 80))
			}
			r, err := l.Run(context10s(t))
			if err != nil || r.Err() != nil {
				t.Fatalf("keep %t: %v, %v", keep, err, r.Err())
			}
			if r.Requests() != 200 || r.Servers()["one"] != 200 {
				t.Errorf("keep %t: %d requests, %v", keep, r.Requests(), r.Servers())
			}
			if p50, p99 := r.Percentile(50), r.Percentile(99); p50 <= 0 || p99 < p50 {
				t.Errorf("p50 %s, p99 %s", p50, p99)
			}
		}
	}
	if err := s.Refuse(); err != nil {
		t.Fatal(err)
	}
	l := Load{Namespace: client, Targets: []netip.AddrPort{netip.AddrPortFrom(addrs[0], 80)}, Requests: 10}
	r, err := l.Run(context10s(t))
	if err != nil || r.Failures()[KindRefused] != 10 {
		t.Errorf("after Refuse: %v, %v", r.Err(), err)
	}
	if err := s.Accept(); err != nil {
		t.Fatal(err)
	}
	if r, err := l.Run(context10s(t)); err != nil || r.Err() != nil {
		t.Errorf("after Accept: %v, %v", r.Err(), err)
	}
}

func TestWireTransfersCompareBytes(t *testing.T) {
	client, node, addrs := twoNodes(t)
	s, err := Serve(node, "one", "[::]:80")
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for _, a := range addrs {
		to := netip.AddrPortFrom(a, 80)
		down := Transfer{Namespace: client, Target: to, Bytes: 3_000_001, Seed: 7}
		if err := down.Download(context10s(t)); err != nil {
			t.Error(err)
		}
		if seen, err := netip.ParseAddrPort(down.SeenAs()); err != nil || down.Server() != "one" || seen.Addr() == a {
			t.Errorf("server %q saw %q, %v", down.Server(), down.SeenAs(), err)
		}
		slow := Transfer{Namespace: client, Target: to, Bytes: 10_000, Seed: 7, Rate: 50_000}
		if err := slow.Download(context10s(t)); err != nil {
			t.Error(err)
		}
		up := Transfer{Namespace: client, Target: to, Bytes: 3_000_001, Seed: 8}
		if err := up.Upload(context10s(t)); err != nil {
			t.Error(err)
		}
		if up.compare("upload", StreamSum(9, up.Bytes)) == nil {
			t.Error("a wrong sum was not noticed")
		}
	}
}

func TestWireEchoAndHalfClose(t *testing.T) {
	client, node, addrs := twoNodes(t)
	e, err := ServeEcho(node, "one", "[::]:7")
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	l, err := ServeHalfClosed(node, "[::]:8", 10*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, a := range addrs {
		to := netip.AddrPortFrom(a, 7)
		if name, err := Ask(client, to, patience.For(time.Second)); err != nil || name != "one" {
			t.Errorf("Ask: %q, %v", name, err)
		}
		source, _ := netip.ParseAddr(map[bool]string{true: "192.0.2.1", false: "2001:db8::1"}[a.Is4()])
		asks := UDPLoad{Namespace: client, Targets: []netip.AddrPort{to}, Source: source, Concurrency: 2, Requests: 100}
		if r, err := asks.Run(context10s(t)); err != nil || r.Err() != nil || r.Servers()["one"] != 100 {
			t.Errorf("UDPLoad: %v, %v, %v", r.Servers(), r.Err(), err)
		}
		nobody := UDPLoad{Namespace: client, Targets: []netip.AddrPort{netip.AddrPortFrom(a, 9)}, Source: source, Requests: 3}
		if r, err := nobody.Run(context10s(t)); err != nil || r.Failures()[KindRefused] != 3 {
			t.Errorf("UDPLoad to a closed port: %v, %v", r.Err(), err)
		}
		udp, err := client.DialContext(context10s(t), "udp", to.String())
		if err != nil {
			t.Fatal(err)
		}
		r, err := CheckEcho(udp, 1, 1400, patience.For(time.Second))
		if want := (EchoReport{Sent: 1400}); err != nil || r != want {
			t.Errorf("CheckEcho: %+v, %v", r, err)
		}
		udp.Close()
		tcp, err := client.DialContext(context10s(t), "tcp", to.String())
		if err != nil {
			t.Fatal(err)
		}
		if err := PingPong(tcp, "hello", patience.For(time.Second)); err != nil {
			t.Error(err)
		}
		tcp.Close()
		if err := HalfClose(context10s(t), client, netip.AddrPortFrom(a, 8), 2_000_000); err != nil {
			t.Error(err)
		}
	}
}

func TestKindsOfFailure(t *testing.T) {
	for want, err := range map[string]error{
		KindRefused: fmt.Errorf("dial: %w", os.NewSyscallError("connect", syscall.ECONNREFUSED)),
		KindReset:   fmt.Errorf("read: %w", syscall.ECONNRESET),
		KindTimeout: &net.OpError{Op: "dial", Err: os.ErrDeadlineExceeded},
		KindOther:   errors.New("no answer"),
	} {
		if got := Kind(err); got != want {
			t.Errorf("Kind(%v) = %s, want %s", err, got, want)
		}
	}
}

// Probes are lost and an established connection ends while a server is gone, for as long as it is.
func TestWireProbesMeasureAnOutage(t *testing.T) {
	client, node, addrs := twoNodes(t)
	serve := func() *Echo {
		e, err := ServeEcho(node, "one", "[::]:7")
		if err != nil {
			t.Fatal(err)
		}
		return e
	}
	e, to := serve(), netip.AddrPortFrom(addrs[1], 7)
	held, err := Hold(context10s(t), client, to, 10*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	probes := map[string]*Probe{}
	for _, network := range []string{"udp", "tcp"} {
		probes[network] = StartProbe(client, network, to, 10*time.Millisecond, patience.For(300*time.Millisecond))
	}
	if err := held.Settle(context10s(t), time.Now()); err != nil || held.Err() != nil {
		t.Errorf("an established connection: %v, %v", err, held.Err())
	}
	const outage = 200 * time.Millisecond
	e.Close()
	time.Sleep(outage)
	e = serve()
	defer e.Close()
	time.Sleep(outage)
	for network, p := range probes {
		if r := p.End(); r.Lost == 0 || r.Lost >= r.Sent || r.Gap < outage || r.Err == nil {
			t.Errorf("%s: %+v", network, r)
		}
	}
	if err := held.Settle(context10s(t), time.Now()); err != nil || held.Err() == nil {
		t.Errorf("an established connection after the end of the server: %v, %v", err, held.Err())
	}
}
