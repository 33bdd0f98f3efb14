package lan

import (
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"github.com/weirlb/weir/lb/announce/l2"
	"github.com/weirlb/weir/perf/netlab"
)

// BenchmarkFlood measures the CPU time of an owner under 10,000 forged frames per second of each kind,
// with a key and without, beside that of an idle one.
//
//	go test -run '^$' -bench Flood -benchtime 1x ./cmd/weir/e2e/lan
func BenchmarkFlood(b *testing.B) {
	for _, key := range []bool{true, false} {
		w := newBed(b, 2, 1)
		if key {
			w.l2 = ", keyFile: " + w.key()
		}
		w.startAll()
		a := vip4(0)
		owner := w.owner(a)
		for _, kind := range []string{"nothing", "hellos", "ARP requests", "forged ARP replies"} {
			used, sent := w.flood(kind, a, owner)
			fmt.Printf("key %v: %s, %d in 10 s: CPU %.1f %%, owner %d, was %d\n", key, kind, sent, 10*used.Seconds(), w.owner(a), owner)
		}
	}
}

// flood sends frames of a kind for 10 s, and is the CPU time that the owner used.
func (b *bed) flood(kind string, a netip.Addr, owner int) (used time.Duration, sent int) {
	tap, err := netlab.NewTap(b.Client, "eth0")
	must(b.t, err)
	defer tap.Close()
	var frames [][]byte
	for host := 20; host < 100 && kind != "nothing"; host++ {
		frames = append(frames, forgedFrame(b.t, kind, a, netlab.Host4(network, uint8(host))))
	}
	before := cpu(b.t, b.nodes[owner])
	end := time.Now().Add(10 * time.Second)
	for tick := time.NewTicker(10 * time.Millisecond); time.Now().Before(end); <-tick.C {
		for range min(100, 100*len(frames)) {
			must(b.t, tap.Send(frames[sent%len(frames)]))
			sent++
		}
	}
	return cpu(b.t, b.nodes[owner]) - before, sent
}

// forgedFrame is a frame of a host that is not there.
func forgedFrame(t testing.TB, kind string, a, from netip.Addr) []byte {
	mac := net.HardwareAddr{2, 0, 0, 0, 0x66, from.As4()[3]}
	everybody := net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	eth := &layers.Ethernet{SrcMAC: mac, DstMAC: everybody, EthernetType: layers.EthernetTypeARP}
	arp := &layers.ARP{
		AddrType: layers.LinkTypeEthernet, Protocol: layers.EthernetTypeIPv4, HwAddressSize: 6, ProtAddressSize: 4, Operation: layers.ARPRequest,
		SourceHwAddress: mac, SourceProtAddress: from.AsSlice(), DstHwAddress: make([]byte, 6), DstProtAddress: a.AsSlice(),
	}
	list := []gopacket.SerializableLayer{eth, arp}
	switch kind {
	case "forged ARP replies":
		arp.Operation, arp.SourceProtAddress = layers.ARPReply, a.AsSlice()
	case "hellos":
		eth.EthernetType, eth.DstMAC = layers.EthernetTypeIPv4, net.HardwareAddr{1, 0, 0x5e, 0, 0, 1}
		ip := &layers.IPv4{Version: 4, TTL: 255, Protocol: layers.IPProtocolUDP, SrcIP: from.AsSlice(), DstIP: net.IPv4(224, 0, 0, 1)}
		udp := &layers.UDP{SrcPort: l2.Port, DstPort: l2.Port}
		must(t, udp.SetNetworkLayerForChecksum(ip))
		list = []gopacket.SerializableLayer{eth, ip, udp, gopacket.Payload("weir")}
	}
	buf := gopacket.NewSerializeBuffer()
	must(t, gopacket.SerializeLayers(buf, gopacket.SerializeOptions{ComputeChecksums: true, FixLengths: true}, list...))
	return buf.Bytes()
}
