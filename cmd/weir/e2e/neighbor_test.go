package e2e

import (
	"errors"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/perf/netlab"
)

// A flushed neighbor is asked for by the next packet, which waits for the answer: as
// with the kernel's own listeners nobody has to send again. Counted, not timed.
func TestWireAFlushedNeighborCostsNoRetransmission(t *testing.T) {
	f := ownFixture(t, options{services: []service{toAttached}})
	f.patientTCP(t)
	bothFamilies(t, func(t *testing.T, six bool) {
		f.connects(t, toAttached, six) // the client knows the way
		before := f.retransmissions(t, f.Client, f.ZoneA)
		const rounds = 8
		for range rounds {
			f.flushNeighbor(t, "eth0", clientAddr(six))
			f.flushNeighbor(t, "eth1", attached.addr(six))
			f.connects(t, toAttached, six)
		}
		if n := f.retransmissions(t, f.Client, f.ZoneA) - before; n != 0 {
			t.Errorf("%d segments were sent again for %d connections; %s", n, rounds, f.whatWasDropped())
		}
	})
}

// A neighbor that is flushed while packets wait for it is asked for again: no connection
// fails. A waiting packet was forgotten before, and answered with host unreachable after a
// second.
func TestWireANeighborFlushedWhileItIsAskedFor(t *testing.T) {
	f := ownFixture(t, options{services: []service{toAttached}})
	bothFamilies(t, func(t *testing.T, six bool) {
		for range 30 {
			ctx, failed := inTime(t, within), make(chan error, 1)
			go func() {
				c, err := f.Client.DialContext(ctx, "tcp", toAttached.at(echoPort, six).String())
				if err == nil {
					c.Close()
				}
				failed <- err
			}()
			for range 6 {
				f.flushNeighbor(t, "eth0", clientAddr(six))
				f.flushNeighbor(t, "eth1", attached.addr(six))
				time.Sleep(300 * time.Microsecond)
			}
			if err := <-failed; err != nil {
				t.Fatalf("%v; %s", err, f.whatWasDropped())
			}
		}
	})
}

// patientTCP has the client and the attached server repeat a segment after five seconds at
// the earliest, a SYN after one: they repeat what is lost, and not what is late on a busy
// machine.
func (f *fixture) patientTCP(t *testing.T) {
	t.Helper()
	for _, r := range []struct {
		at      *netlab.Namespace
		to, via [2]netip.Addr // by family
	}{
		{f.Client, [2]netip.Addr{toAttached.lbIP(false), toAttached.lbIP(true)},
			[2]netip.Addr{netlab.Host4(netlab.ClientNet, 1), netlab.Host6(netlab.ClientNet, 1)}},
		{f.ZoneA, [2]netip.Addr{netlab.Host4(netlab.FabricNet, 1), netlab.Host6(netlab.FabricNet, 1)}, [2]netip.Addr{}},
	} {
		link, err := r.at.Interface("eth0")
		must(t, err)
		for i, to := range r.to {
			bits := to.BitLen()
			dst := &net.IPNet{IP: to.AsSlice(), Mask: net.CIDRMask(bits, bits)}
			route := &netlink.Route{LinkIndex: link.Attrs().Index, Dst: dst, RtoMin: 5000, Gw: r.via[i].AsSlice()}
			if !r.via[i].IsValid() && to.Is4() {
				route.Scope = netlink.SCOPE_LINK
			}
			must(t, r.at.Netlink().RouteAdd(route))
		}
	}
}

// A host on the clients' network sends from addresses that do not exist, to a server
// that answers all of them. Neither clients that exist nor endpoints wait for that, even
// when their neighbors have to be asked for.
func TestWireAddressesThatDoNotExistHoldNobodyUp(t *testing.T) {
	f := ownFixture(t, options{services: []service{toAttached}})
	bothFamilies(t, func(t *testing.T, six bool) {
		f.connects(t, toAttached, six)
		stop, sent := f.sendFromNobody(t, six)
		rounds, late := 0, 0
		for begun := sent(); rounds < 20 || sent() < begun+600; rounds++ {
			f.flushNeighbor(t, "eth0", clientAddr(six))
			f.flushNeighbor(t, "eth1", attached.addr(six))
			before := f.retransmissions(t, f.Client)
			f.connects(t, toAttached, six)
			if f.retransmissions(t, f.Client) > before+1 {
				late++
			}
		}
		stop()
		t.Logf("%d connections, %d late, beside %d packets from nobody", rounds, late, sent())
		if late > rounds/20 {
			t.Errorf("%d of %d connections were late; %s", late, rounds, f.whatWasDropped())
		}
	})
}

// connects makes one connection of the client's and ends it.
func (f *fixture) connects(t *testing.T, s service, six bool) {
	t.Helper()
	c, err := f.Client.DialContext(inTime(t, within), "tcp", s.at(echoPort, six).String())
	if err != nil {
		t.Fatalf("%v; %s", err, f.whatWasDropped())
	}
	c.Close()
}

// retransmissions are the TCP segments that namespaces have sent again so far.
func (f *fixture) retransmissions(t *testing.T, of ...*netlab.Namespace) (n int64) {
	t.Helper()
	for _, ns := range of {
		c, err := ns.Counters()
		must(t, err)
		n += int64(c["TcpRetransSegs"])
	}
	return n
}

// flushNeighbor takes a neighbor from the edge node's kernel, if it is there.
func (f *fixture) flushNeighbor(t *testing.T, ifname string, a netip.Addr) {
	t.Helper()
	link, err := f.Edge.Edge.Interface(ifname)
	must(t, err)
	err = f.Edge.Edge.Netlink().NeighDel(&netlink.Neigh{LinkIndex: link.Attrs().Index, IP: a.AsSlice()})
	if err != nil && !errors.Is(err, unix.ENOENT) {
		t.Fatal(err)
	}
}

// sendFromNobody has the client's host send datagrams from addresses of its network that
// nobody has, in bursts, until stop is called. count is how many there were.
func (f *fixture) sendFromNobody(t *testing.T, six bool) (stop func(), count func() int) {
	t.Helper()
	tap, err := netlab.NewTap(f.Client, "eth0")
	must(t, err)
	edge, err := f.Edge.Edge.Interface("eth0")
	must(t, err)
	client, err := f.Client.Interface("eth0")
	must(t, err)
	to := toAttached.at(echoPort, six)
	// 400 a second fill a hold queue without classes and leave a slow machine time.
	end := make(chan struct{})
	var sent atomic.Int64
	var done sync.WaitGroup
	done.Add(1)
	go func() {
		defer done.Done()
		for {
			for range 4 {
				if tap.Send(fromNobody(t, edge.Attrs().HardwareAddr, client.Attrs().HardwareAddr, to, int(sent.Load()))) == nil {
					sent.Add(1)
				}
			}
			select {
			case <-end:
				return
			case <-time.After(10 * time.Millisecond):
			}
		}
	}()
	stop = sync.OnceFunc(func() {
		close(end)
		done.Wait()
		tap.Close()
	})
	t.Cleanup(stop)
	return stop, func() int { return int(sent.Load()) }
}

// fromNobody is datagram number n, from an address that nobody has.
func fromNobody(t *testing.T, dst, src net.HardwareAddr, to netip.AddrPort, n int) []byte {
	eth := &layers.Ethernet{SrcMAC: src, DstMAC: dst, EthernetType: layers.EthernetTypeIPv4}
	udp := &layers.UDP{SrcPort: layers.UDPPort(1024 + n%50000), DstPort: layers.UDPPort(to.Port())}
	var ip gopacket.SerializableLayer
	if to.Addr().Is6() {
		eth.EthernetType = layers.EthernetTypeIPv6
		a := netlab.Host6(netlab.ClientNet, 0).As16()
		a[8], a[13], a[14], a[15] = 0xbd, byte(n>>16), byte(n>>8), byte(n)
		ip6 := &layers.IPv6{Version: 6, HopLimit: 64, NextHeader: layers.IPProtocolUDP, SrcIP: a[:], DstIP: to.Addr().AsSlice()}
		_ = udp.SetNetworkLayerForChecksum(ip6)
		ip = ip6
	} else {
		a := netlab.Host4(netlab.ClientNet, uint8(100+n%150))
		ip4 := &layers.IPv4{Version: 4, TTL: 64, Protocol: layers.IPProtocolUDP, SrcIP: a.AsSlice(), DstIP: to.Addr().AsSlice()}
		_ = udp.SetNetworkLayerForChecksum(ip4)
		ip = ip4
	}
	buf := gopacket.NewSerializeBuffer()
	if err := gopacket.SerializeLayers(buf, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, eth, ip, udp, gopacket.Payload("anybody there?")); err != nil {
		panic(err)
	}
	return buf.Bytes()
}
