package e2e

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"github.com/weirlb/weir/perf/netlab"
)

// Ten SYNs from nowhere for one from the client, at a Service with one endpoint and 64
// SNAT ports: all connections are made, 95 % of them within one retransmission, and the
// established one goes on.
func TestWireASYNFloodDoesNotCloseAnEndpoint(t *testing.T) {
	f := ownFixture(t, options{services: []service{toAttached}, extra: "snat: {ports: 61000-61063}"})
	// Whoever answers the flood's addresses hears nothing more of it: the client's host
	// does not forward.
	must(t, f.Edge.Edge.AddRoute("eth0", netip.MustParsePrefix("44.0.0.0/8"), clientAddr(false)))
	lasting, err := f.Client.DialContext(inTime(t, within), "tcp", toAttached.at(httpPort, false).String())
	must(t, err)
	defer lasting.Close()
	tap, err := netlab.NewTap(f.Client, "eth0")
	must(t, err)
	defer tap.Close()
	edge, err := f.Edge.Edge.Interface("eth0")
	must(t, err)
	client, err := f.Client.Interface("eth0")
	must(t, err)
	const rounds = 40
	late := 0
	for n := range rounds {
		for i := range 10 {
			must(t, tap.Send(synFromNowhere(edge.Attrs().HardwareAddr, client.Attrs().HardwareAddr, toAttached.at(echoPort, false), 10*n+i)))
		}
		before := f.retransmissions(t, f.Client)
		f.connects(t, toAttached, false)
		if f.retransmissions(t, f.Client) > before+1 {
			late++
		}
	}
	if late > rounds/20 {
		t.Errorf("%d of %d connections were late; %s", late, rounds, f.whatWasDropped())
	}
	if who := whoServes(t, lasting); who != "attached" {
		t.Errorf("%q answers on the established connection", who)
	}
}

// synFromNowhere is SYN number n.
func synFromNowhere(dst, src net.HardwareAddr, to netip.AddrPort, n int) []byte {
	eth := &layers.Ethernet{SrcMAC: src, DstMAC: dst, EthernetType: layers.EthernetTypeIPv4}
	ip := &layers.IPv4{Version: 4, TTL: 64, Protocol: layers.IPProtocolTCP, SrcIP: net.IPv4(44, byte(n>>16), byte(n>>8), byte(n)), DstIP: to.Addr().AsSlice()}
	tcp := &layers.TCP{SrcPort: 1024, DstPort: layers.TCPPort(to.Port()), Seq: uint32(n) * 2654435761, SYN: true, Window: 64240}
	_ = tcp.SetNetworkLayerForChecksum(ip)
	buf := gopacket.NewSerializeBuffer()
	if err := gopacket.SerializeLayers(buf, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, eth, ip, tcp); err != nil {
		panic(err)
	}
	return buf.Bytes()
}

// The endpoint has open connections for all SNAT ports when Weir starts without its flow
// table. A new connection meets one of these, resets it, and is made from the same port
// with its next SYN.
func TestWirePortsThatTheEndpointStillKnowsServeTheNextSYN(t *testing.T) {
	const ports = 16
	f := ownFixture(t, options{services: []service{toAttached}, extra: "snat: {ports: 61000-61015}"})
	dial := func() net.Conn {
		t.Helper()
		c, err := f.Client.DialContext(inTime(t, within), "tcp", toAttached.at(httpPort, false).String())
		if err != nil {
			t.Fatalf("%v; %s", err, f.whatWasDropped())
		}
		return c
	}
	for range ports {
		c := dial().(*net.TCPConn)
		if who := whoServes(t, c); who != "attached" {
			t.Fatalf("%q answers", who)
		}
		forget(t, c)
	}
	must(t, f.weir.Kill())
	forgetting, err := f.Edge.Edge.Start(f.command("cleanup", "--config", f.path("config.yaml"))) // of a table in the kernel
	must(t, err)
	<-forgetting.Done()
	must(t, errors.Join(forgetting.Err(), os.RemoveAll(f.path("conntrack"))))
	must(t, f.start())
	for n := range ports {
		before := f.retransmissions(t, f.Client)
		c := dial()
		if who := whoServes(t, c); who != "attached" {
			t.Errorf("%q answers", who)
		}
		if again := f.retransmissions(t, f.Client) - before; again > 1 {
			t.Errorf("connection %d took %d retransmissions", n, again)
		}
		t.Cleanup(func() { c.Close() })
	}
}
