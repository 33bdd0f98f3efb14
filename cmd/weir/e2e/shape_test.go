package e2e

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/weirlb/weir/lb/counter"
	"github.com/weirlb/weir/perf/netlab"
	"github.com/weirlb/weir/perf/netlab/patience"
	"github.com/weirlb/weir/perf/netlab/workload"
)

// checkAll makes some connections of every sort to every kind of endpoint.
func (f *fixture) checkAll(t *testing.T) {
	t.Helper()
	f.checkChecksums(t)
	for _, s := range kinds {
		t.Run(s.name, func(t *testing.T) {
			bothFamilies(t, func(t *testing.T, six bool) {
				f.checkLoad(t, f.Client, s.at(httpPort, six), 100)
				f.checkLoad(t, f.Client, s.atNode(httpPort, six), 100)
				f.checkEcho(t, s, six, 1300, 1400)
				f.checkTransfers(t, s, six, 4<<20)
			})
		})
	}
}

// Two receive queues are served by two workers; an answer may arrive at
// another worker than its request.
func TestWireTwoQueues(t *testing.T) {
	f := ownFixture(t, options{services: append([]service{toAll}, kinds...), edge: netlab.EdgeConfig{Queues: 2}})
	f.checkAll(t)
	load := &workload.Load{Namespace: f.Client, Concurrency: 20, Requests: 2000,
		Targets: []netip.AddrPort{toAll.at(httpPort, false), toAll.at(httpPort, true)}}
	r, err := load.Run(inTime(t, patience.For(time.Minute)))
	if err != nil || r.Err() != nil {
		t.Error(err, r.Err())
	}
	status, err := f.admin.Status(inTime(t, within))
	if err != nil {
		t.Fatal(err)
	}
	if len(status.Workers) != 2 {
		t.Fatalf("%d workers", len(status.Workers))
	}
	for _, w := range status.Workers {
		if w.Counters[counter.RxPackets] == 0 || w.Counters[counter.TxPackets] == 0 {
			t.Errorf("worker %d received %d and sent %d packets", w.ID, w.Counters[counter.RxPackets], w.Counters[counter.TxPackets])
		}
		// An answer's queue is by its own hash: of thousands of flows half come
		// in at the worker that did not make them.
		if w.Counters[counter.NewFlows] == 0 {
			t.Errorf("worker %d began no flow", w.ID)
		}
		if w.Counters[counter.Batches] == 0 || w.Counters[counter.Busy] == 0 || w.Counters[counter.FreeFrames] == 0 {
			t.Errorf("worker %d: %+v", w.ID, w)
		}
	}
	for _, i := range status.Interfaces {
		if i.BoundQueues != i.Queues || i.Queues != 2 {
			t.Errorf("%s: %d of %d queues", i.Name, i.BoundQueues, i.Queues)
		}
	}
}

// Workers without packets sleep: ten rounds a second, and what the kernel's own
// chatter wakes them for. Counted, because time on a shared machine says little.
func TestWireIdleWorkersSleep(t *testing.T) {
	f := ownFixture(t, options{services: []service{toAttached}})
	if err := f.poll(func(ctx context.Context) error {
		before, err := f.admin.Status(ctx)
		if err != nil {
			return err
		}
		time.Sleep(time.Second)
		after, err := f.admin.Status(ctx)
		if err != nil {
			return err
		}
		for i := range after.Workers {
			a, b := &after.Workers[i], &before.Workers[i]
			sleeps, packets := a.Counters[counter.Sleeps]-b.Counters[counter.Sleeps], a.Counters[counter.RxPackets]-b.Counters[counter.RxPackets]
			t.Logf("worker %d: %d sleeps, %d packets, busy for %.6f s", a.ID, sleeps, packets, (a.Counters.Busy() - b.Counters.Busy()).Seconds())
			if seconds := after.UptimeSeconds - before.UptimeSeconds; float64(sleeps) > 20*seconds+float64(packets) {
				return fmt.Errorf("worker %d woke up %d times in %.1f s, for %d packets", a.ID, sleeps, seconds, packets)
			}
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
	f.checkLoad(t, f.Client, toAttached.at(httpPort, false), 50)
}

// With the clients' interface alone every endpoint is behind the kernel.
func TestWireOneInterface(t *testing.T) {
	f := ownFixture(t, options{services: kinds, interfaces: "[{name: eth0}]"})
	f.checkAll(t)
}

// Generic XDP runs on every driver; offloads that merge packets before it are
// put back in the end. The peers send no merged packets, as none come from a
// wire.
func TestWireGenericMode(t *testing.T) {
	f := ownFixture(t, options{services: kinds, interfaces: "[{name: eth0, mode: generic}, {name: eth1, mode: generic}]", stopped: true})
	for _, peer := range []struct {
		n    *netlab.Namespace
		name string
	}{{f.Client, "eth0"}, {f.Fabric, "edge"}} {
		if err := peer.n.SetOffloads(peer.name, map[string]bool{"tx-tcp-segmentation": false, "tx-tcp6-segmentation": false,
			"tx-generic-segmentation": false}); err != nil {
			t.Fatal(err)
		}
	}
	before, err := netlab.StateOf(f.Edge.Edge)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.start(); err != nil {
		t.Fatal(err)
	}
	f.checkAll(t)
	if err := f.weir.Stop(within); err != nil {
		t.Fatal(err)
	}
	after, err := netlab.StateOf(f.Edge.Edge)
	if err != nil {
		t.Fatal(err)
	}
	if left := before.Diff(after); len(left) > 0 {
		t.Errorf("left behind:\n%s", strings.Join(left, "\n"))
	}
}

// Jumbo frames travel in several buffers.
func TestWireJumboFrames(t *testing.T) {
	f := ownFixture(t, options{services: kinds, edge: netlab.EdgeConfig{MTU: 9000}})
	f.checkAll(t)
	bothFamilies(t, func(t *testing.T, six bool) { f.checkEcho(t, toAttached, six, 8900, 8950) })
}

// An endpoint that gets another MAC address keeps its connections.
func TestWireEndpointChangesItsMAC(t *testing.T) {
	f := ownFixture(t, options{services: []service{toAttached}})
	for _, key := range []string{"net/ipv4/conf/eth0/arp_notify", "net/ipv6/conf/eth0/ndisc_notify"} {
		if err := f.ZoneA.SetSysctl(key, "1"); err != nil {
			t.Fatal(err)
		}
	}
	conns := map[string]net.Conn{}
	for _, six := range []bool{false, true} {
		c, err := f.Client.DialContext(inTime(t, within), "tcp", toAttached.at(echoPort, six).String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		conns[family(six)] = c
	}
	f.checkAlive(t, conns, "at first")
	link, err := f.ZoneA.Interface("eth0")
	if err != nil {
		t.Fatal(err)
	}
	if err := f.ZoneA.Netlink().LinkSetHardwareAddr(link, net.HardwareAddr{2, 0, 0, 0, 0, 1}); err != nil {
		t.Fatal(err)
	}
	f.checkAlive(t, conns, "after the MAC address changed")
	bothFamilies(t, func(t *testing.T, six bool) { f.checkLoad(t, f.Client, toAttached.at(httpPort, six), 20) })
}

// An endpoint whose host does not answer ARP or NDP is reported as
// unreachable, and does not hold up others.
func TestWireEndpointThatIsNotThere(t *testing.T) {
	t.Parallel()
	gone := service{name: "gone", index: 22, endpoints: []endpoint{{netlab.FabricNet, 99, "zonea"}}}
	f := ownFixture(t, options{services: []service{toAttached, gone}})
	bothFamilies(t, func(t *testing.T, six bool) {
		done := make(chan error, 1)
		go func() {
			c, err := f.Client.DialContext(inTime(t, within), "tcp", gone.at(httpPort, six).String())
			if err == nil {
				c.Close()
			}
			done <- err
		}()
		f.checkLoad(t, f.Client, toAttached.at(httpPort, six), 100)
		if err := <-done; err == nil || !strings.Contains(err.Error(), syscall.EHOSTUNREACH.Error()) {
			t.Errorf("got %v, want %v", err, syscall.EHOSTUNREACH)
		}
	})
}

// Node ports follow the node's addresses.
func TestWireNodeGetsAnAddress(t *testing.T) {
	f := ownFixture(t, options{services: []service{toAttached}})
	for _, a := range []netip.Prefix{netip.PrefixFrom(netlab.Host4(netlab.ClientNet, 50), 24), netip.PrefixFrom(netlab.Host6(netlab.ClientNet, 50), 64)} {
		to := netip.AddrPortFrom(a.Addr(), toAttached.nodePort(httpPort))
		if err := f.Edge.Edge.AddAddr("eth0", a); err != nil {
			t.Fatal(err)
		}
		if err := f.poll(func(ctx context.Context) error {
			list, err := f.admin.Frontends(ctx)
			if err != nil {
				return err
			}
			for _, fe := range list.Frontends {
				if fe.Address == to.String() {
					return nil
				}
			}
			return fmt.Errorf("%s is no frontend", to)
		}); err != nil {
			t.Fatal(err)
		}
		f.checkLoad(t, f.Client, to, 20)
		link, err := f.Edge.Edge.Interface("eth0")
		if err != nil {
			t.Fatal(err)
		}
		addr, err := netlink.ParseAddr(a.String())
		if err != nil {
			t.Fatal(err)
		}
		if err := f.Edge.Edge.Netlink().AddrDel(link, addr); err != nil {
			t.Fatal(err)
		}
		if err := f.served(1); err != nil {
			t.Errorf("after the address went: %v", err)
		}
	}
}

// SIGHUP takes over what can change while running; a file that is wrong
// changes nothing.
func TestWireReload(t *testing.T) {
	f := ownFixture(t, options{services: []service{toAttached}})
	conns := map[string]net.Conn{}
	c, err := f.Client.DialContext(inTime(t, within), "tcp", toAttached.at(echoPort, false).String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	conns["connection"] = c

	good := f.config()
	replace(t, f.path("config.yaml"), []byte("nonsense: true\n"+good))
	if err := f.weir.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	f.checkLoad(t, f.Client, toAttached.atNode(httpPort, false), 20)

	only6 := strings.Replace(good, fmt.Sprintf("%q, ", netip.PrefixFrom(netlab.Host4(netlab.ClientNet, 0), 24)), "", 1)
	if only6 == good {
		t.Fatal("the configuration is not what the test expects")
	}
	replace(t, f.path("config.yaml"), []byte(only6))
	if err := f.weir.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	if err := f.poll(func(ctx context.Context) error {
		list, err := f.admin.Frontends(ctx)
		if err == nil && len(list.Frontends) != 4*3 { // both families' load balancer IPs, node ports of IPv6
			err = fmt.Errorf("%d frontends", len(list.Frontends))
		}
		return err
	}); err != nil {
		t.Error(err)
	}
	f.checkAlive(t, conns, "after SIGHUP")
	f.checkLoad(t, f.Client, toAttached.atNode(httpPort, true), 20)
}
