package pcapfilter

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/google/gopacket/pcapgo"
)

// frame builds a frame of layers.
func frame(t testing.TB, list ...gopacket.SerializableLayer) []byte {
	t.Helper()
	b := gopacket.NewSerializeBuffer()
	if err := gopacket.SerializeLayers(b, gopacket.SerializeOptions{FixLengths: true}, list...); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// frames are a frame of each kind.
func frames(t testing.TB) map[string][]byte {
	mac := []byte{2, 0, 0, 0, 0, 1}
	eth := func(kind layers.EthernetType) *layers.Ethernet {
		return &layers.Ethernet{SrcMAC: mac, DstMAC: mac, EthernetType: kind}
	}
	ip4 := func(src, dst string, p layers.IPProtocol) *layers.IPv4 {
		return &layers.IPv4{Version: 4, TTL: 64, Protocol: p, SrcIP: netip.MustParseAddr(src).AsSlice(), DstIP: netip.MustParseAddr(dst).AsSlice()}
	}
	ip6 := func(src, dst string, p layers.IPProtocol) *layers.IPv6 {
		return &layers.IPv6{Version: 6, HopLimit: 64, NextHeader: p, SrcIP: netip.MustParseAddr(src).AsSlice(), DstIP: netip.MustParseAddr(dst).AsSlice()}
	}
	tcp := func(src, dst layers.TCPPort, syn, ack bool) *layers.TCP {
		return &layers.TCP{SrcPort: src, DstPort: dst, SYN: syn, ACK: ack}
	}
	later := ip4("192.0.2.1", "198.51.100.7", layers.IPProtocolUDP)
	later.FragOffset = 100
	return map[string][]byte{
		"syn":      frame(t, eth(layers.EthernetTypeIPv4), ip4("192.0.2.1", "198.51.100.7", layers.IPProtocolTCP), tcp(4000, 80, true, false)),
		"synack":   frame(t, eth(layers.EthernetTypeIPv4), ip4("198.51.100.7", "192.0.2.1", layers.IPProtocolTCP), tcp(80, 4000, true, true)),
		"data":     frame(t, eth(layers.EthernetTypeIPv4), ip4("192.0.2.2", "198.51.100.7", layers.IPProtocolTCP), tcp(4001, 443, false, true), gopacket.Payload(make([]byte, 900))),
		"udp":      frame(t, eth(layers.EthernetTypeIPv4), ip4("10.1.2.3", "10.9.9.9", layers.IPProtocolUDP), &layers.UDP{SrcPort: 53, DstPort: 5353}),
		"later":    frame(t, eth(layers.EthernetTypeIPv4), later, gopacket.Payload("12345678")),
		"ping":     frame(t, eth(layers.EthernetTypeIPv4), ip4("10.1.2.3", "10.9.9.9", layers.IPProtocolICMPv4), &layers.ICMPv4{TypeCode: 8 << 8}),
		"sctp":     frame(t, eth(layers.EthernetTypeIPv4), ip4("10.1.2.3", "10.9.9.9", layers.IPProtocolSCTP), gopacket.Payload{0, 80, 31, 144, 0, 0, 0, 0, 0, 0, 0, 0}),
		"tcp6":     frame(t, eth(layers.EthernetTypeIPv6), ip6("2001:db8::1", "2001:db8:1::7", layers.IPProtocolTCP), tcp(4000, 80, true, false)),
		"udp6":     frame(t, eth(layers.EthernetTypeIPv6), ip6("2001:db8::1", "2001:db8:1::7", layers.IPProtocolUDP), &layers.UDP{SrcPort: 9, DstPort: 53}),
		"icmp6":    frame(t, eth(layers.EthernetTypeIPv6), ip6("2001:db8::1", "2001:db8:1::7", layers.IPProtocolICMPv6), gopacket.Payload{128, 0, 0, 0, 0, 0, 0, 0}),
		"arp":      frame(t, eth(layers.EthernetTypeARP), gopacket.Payload(make([]byte, 28))),
		"other":    frame(t, eth(0x88cc), gopacket.Payload(make([]byte, 40))),
		"tooshort": {1, 2, 3},
	}
}

// expressions that mean the same to tcpdump.
var expressions = []string{
	"", "ip", "ip6", "arp", "tcp", "udp", "sctp", "icmp", "icmp6", "host 192.0.2.1", "src host 192.0.2.1", "dst 192.0.2.1",
	"src or dst host 10.9.9.9", "src and dst net 10.0.0.0/8", "net 198.51.100.0/24", "src net 2001:db8::/64", "host 2001:db8:1::7",
	"port 80", "tcp port 80", "udp dst port 53", "src portrange 4000-4001", "tcp and not port 443", "not (tcp or udp)",
	"port 80 or 443", "host 192.0.2.1 or 192.0.2.2 and port 443", "tcp or udp and port 53", "! tcp && ip",
	"ip and tcp[tcpflags] & tcp-syn != 0", "ip and tcp[tcpflags] & (tcp-syn|tcp-ack) == tcp-syn", "ip and tcp[13] = 18",
	"ip proto 17", "ip6 proto 6", "ip proto \\udp", "less 100", "greater 900", "ip host 192.0.2.1 and tcp src port 4000",
	"ip6 and tcp port 80", "not host 10.9.9.9", "portrange 1-100", "icmp or arp",
}

func matching(t testing.TB, f *Filter, all map[string][]byte) (names []string) {
	for name, data := range all {
		var p Packet
		Read(data, len(data), &p)
		if f.Match(&p) {
			names = append(names, name)
		}
	}
	return names
}

// tcpdump is the reference: of each expression it takes the same frames.
func TestExpressionsMeanWhatTheyMeanToTcpdump(t *testing.T) {
	tcpdump, err := exec.LookPath("tcpdump")
	if err != nil {
		t.Skip("no tcpdump: see .ci/programs")
	}
	all := frames(t)
	delete(all, "tooshort") // libpcap's own filter of files does not look at it
	names := slices.Sorted(maps.Keys(all))
	var file bytes.Buffer
	w := pcapgo.NewWriter(&file)
	if err := w.WriteFileHeader(65535, layers.LinkTypeEthernet); err != nil {
		t.Fatal(err)
	}
	for i, name := range names { // the time is the number of the frame
		data := all[name]
		if err := w.WritePacket(gopacket.CaptureInfo{Timestamp: time.Unix(int64(i), 0), CaptureLength: len(data), Length: len(data)}, data); err != nil {
			t.Fatal(err)
		}
	}
	path := filepath.Join(t.TempDir(), "frames.pcap")
	if err := os.WriteFile(path, file.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, s := range expressions {
		f, err := Compile(s, nil)
		if err != nil {
			t.Errorf("%s: %v", s, err)
			continue
		}
		out, err := exec.Command(tcpdump, "-tt", "-nr", path, s).Output()
		if err != nil {
			t.Fatalf("tcpdump %s: %v", s, err)
		}
		for i, name := range names {
			var p Packet
			Read(all[name], len(all[name]), &p)
			want := bytes.HasPrefix(out, fmt.Appendf(nil, "%d.", i)) || bytes.Contains(out, fmt.Appendf(nil, "\n%d.", i))
			if f.Match(&p) != want {
				t.Errorf("%q: %s: matches %v, to tcpdump %v", s, name, !want, want)
			}
		}
	}
}

// Tags and IPv6 extension headers are skipped, which pcap-filter does not do by itself.
func TestHeadersAreFoundBehindOthers(t *testing.T) {
	mac := []byte{2, 0, 0, 0, 0, 1}
	udp := frames(t)["udp"]
	tagged := append(append(bytes.Clone(udp[:12]), 0x81, 0, 0x20, 7), udp[12:]...)
	ext := frame(t, &layers.Ethernet{SrcMAC: mac, DstMAC: mac, EthernetType: layers.EthernetTypeIPv6},
		&layers.IPv6{Version: 6, HopLimit: 9, NextHeader: layers.IPProtocolIPv6Destination, SrcIP: netip.MustParseAddr("2001:db8::1").AsSlice(), DstIP: netip.MustParseAddr("2001:db8::2").AsSlice()},
		gopacket.Payload{17, 0, 1, 4, 0, 0, 0, 0, 0, 53, 0, 99, 0, 8, 0, 0})
	for _, c := range []struct {
		filter string
		frame  []byte
		want   bool
	}{
		{"udp port 53", tagged, true}, {"vlan", tagged, true}, {"vlan 7", tagged, true}, {"vlan 8", tagged, false}, {"vlan", udp, false},
		{"udp src port 53 and dst port 99", ext, true}, {"proto 60", ext, false},
	} {
		f, err := Compile(c.filter, nil)
		if err != nil {
			t.Fatal(err)
		}
		var p Packet
		Read(c.frame, len(c.frame), &p)
		if f.Match(&p) != c.want {
			t.Errorf("%q: %v", c.filter, !c.want)
		}
	}
}

func TestServicesStandForTheirFrontends(t *testing.T) {
	services := func(name string) ([]Frontend, error) {
		switch name {
		case "default/web":
			return []Frontend{{netip.MustParseAddrPort("198.51.100.7:80"), 6, 0}, {netip.MustParseAddrPort("[2001:db8:1::7]:53"), 17, 60}}, nil
		case "default/none":
			return nil, nil
		}
		return nil, errors.New("not found")
	}
	f, err := Compile("service default/web and not ip6", services)
	if err != nil {
		t.Fatal(err)
	}
	got := strings.Join(matching(t, f, frames(t)), " ")
	if len(strings.Fields(got)) != 2 || !strings.Contains(got, "syn") || !strings.Contains(got, "synack") {
		t.Errorf("matches %s", got)
	}
	for s, want := range map[string]string{
		"service default/none": "no frontend", "service x/y": "service x/y: not found", "service": "namespace/name",
	} {
		if _, err := Compile(s, services); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", s, err)
		}
	}
}

func TestErrorsNameThePart(t *testing.T) {
	for s, want := range map[string]string{
		"port http":                      `port: expected a number from 0 to 65535, found "http"`,
		"port 70000":                     `found "70000"`,
		"host":                           `found ""`,
		"net 10":                         "net: expected ADDRESS/LENGTH",
		"(tcp":                           `expected ")", found the end`,
		"tcp udp":                        `found "udp"`,
		"and":                            `found "and"`,
		"tcp and":                        "found the end",
		"example.org":                    `expected an address or a test, found "example.org"`,
		"tcp[0] = 1":                     "expected tcpflags or 13",
		"arp port 1":                     "arp: it has no port",
		"portrange 1-":                   "portrange",
		"service a/b":                    "no Services are known",
		"tcp[tcpflags]":                  "expected a comparison",
		"vlan 5000":                      "vlan",
		"ip proto greek":                 "proto",
		strings.Repeat("(", 100) + "tcp": "deeper than 64",
		strings.Repeat("port 1 or ", 400) + "port 2":   "",
		strings.Repeat("tcp or ", 600) + "ip":          longerThan,
		strings.Repeat("1::1 or ", 500) + "host 1::1 ": "",
	} {
		_, err := Compile(s, nil)
		switch {
		case want == "" && err != nil, want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%.40q: %v, want %q", s, err, want)
		}
	}
}

const longerThan = "longer than 4096 bytes"

func TestMatchDoesNotAllocate(t *testing.T) {
	f, err := Compile("tcp and (host 192.0.2.1 or net 2001:db8::/32) and not port 443", nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, data := range frames(t) {
		if n := testing.AllocsPerRun(100, func() { var p Packet; Read(data, len(data), &p); f.Match(&p) }); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

func BenchmarkMatch(b *testing.B) {
	f, err := Compile("tcp and (host 192.0.2.1 or net 2001:db8::/32) and not port 443", nil)
	if err != nil {
		b.Fatal(err)
	}
	data := frames(b)["syn"]
	b.ReportAllocs()
	for b.Loop() {
		var p Packet
		Read(data, len(data), &p)
		f.Match(&p)
	}
}

// An expression or a frame never ends the program, and an expression that compiles once
// compiles to the same again.
func FuzzFilter(f *testing.F) {
	for _, s := range expressions {
		f.Add(s, frames(f)["syn"])
	}
	for _, data := range frames(f) {
		f.Add("vlan 1 or tcp[tcpflags] & (tcp-syn|1) != 2 and (not less 40)", data)
	}
	f.Fuzz(func(t *testing.T, s string, data []byte) {
		var p Packet
		Read(data, len(data), &p)
		filter, err := Compile(s, nil)
		if err != nil {
			return
		}
		match := filter.Match(&p)
		if negated, err := Compile("not ("+s+")", nil); err == nil && s != "" && len(filter.nodes) > 0 && negated.Match(&p) == match {
			t.Errorf("%q and the negation both say %v", s, match)
		}
	})
}
