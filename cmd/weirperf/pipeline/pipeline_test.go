package pipeline

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"net"
	"slices"
	"strings"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"github.com/weirlb/weir/lb/header"
)

// The form of the JSON is a contract.
func TestEveryKindIsMeasured(t *testing.T) {
	for _, tt := range []struct {
		mode, proto string
		more        []string
	}{
		{"nat", "udp", nil}, {"nat", "tcp", nil}, {"dnat", "udp", nil}, {"dnat", "tcp", nil}, {"l2dsr", "udp", nil}, {"l2dsr", "tcp", nil},
		{"ipip", "udp", nil}, {"ipip", "tcp", nil}, {"gue", "udp", nil}, {"gue", "tcp", nil},
		{"nat", "udp", []string{"--ipv6"}}, {"nat", "tcp", []string{"--ipv6"}}, {"dnat", "udp", []string{"--ipv6"}}, {"l2dsr", "tcp", []string{"--ipv6"}},
	} {
		t.Run(strings.Join(append(tt.more, tt.mode, tt.proto), "/"), func(t *testing.T) {
			if testing.Short() && (tt.mode != "nat" || tt.proto != "udp" || tt.more != nil) {
				t.Skip("takes a minute with the race detector")
			}
			t.Parallel() // UDP waits two seconds
			var out bytes.Buffer
			cmd := Command()
			cmd.SetArgs(append(tt.more, "--flows", "1,2048", "--workers", "2", "--samples", "1", "--mode", tt.mode, "--proto", tt.proto, "--json"))
			cmd.SetOut(&out)
			cmd.SetErr(&bytes.Buffer{})
			if err := cmd.Execute(); err != nil {
				t.Fatal(err)
			}
			var got struct {
				Results []map[string]any   `json:"results"`
				Ratios  map[string]float64 `json:"ratios"`
			}
			if err := json.Unmarshal(out.Bytes(), &got); err != nil {
				t.Fatal(err)
			}
			var kinds []string
			for _, r := range got.Results {
				if r["mode"] != tt.mode {
					t.Errorf("a result of mode %v", r["mode"])
				}
				if kind := r["kind"].(string); kind != kindEarly { // a busy machine is too slow for it
					kinds = append(kinds, kind)
				}
				for _, field := range []string{"mode", "flows", "nsPerPacket", "min", "max", "allocsPerPacket"} {
					if _, ok := r[field]; !ok {
						t.Errorf("a result has no %s: %v", field, r)
					}
				}
			}
			want := []string{"established", "established", "drop", "drop", "new", "answer", "established", "established", "drop", "drop"}
			if !modeNamed(tt.mode).answers() {
				want = slices.Delete(want, 5, 6)
			}
			if !slices.Equal(kinds, want) {
				t.Errorf("kinds %v, want %v", kinds, want)
			}
			if len(got.Ratios) != 4 {
				t.Errorf("ratios %v", got.Ratios)
			}
		})
	}
}

func TestAWrongByteIsNoticed(t *testing.T) {
	for _, md := range modes {
		t.Run(md.name, func(t *testing.T) {
			l, err := newBalancer(md, false, 1, 1024)
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			b := newBench(l, Options{Mode: md.name, Proto: "udp"}, 1)
			m := newMaker(false, header.ProtoUDP, 0)
			out := l.Queue(0, portServer)
			m.give(l.Queue(0, portClient), l.Umem().Bytes(), []packet{m.request(0)})
			l.Round(0)
			if err := b.learn(out, m); err != nil {
				t.Fatal(err)
			}
			if err := b.checkOut(out, portServer, m, 1); err != nil {
				t.Fatal(err)
			}
			f := l.Umem().Data(out.Out[0])
			for i := range f {
				f[i] ^= 0x10
				if b.checkOut(out, portServer, m, 1) == nil {
					t.Errorf("byte %d of %x is taken", i, f)
				}
				f[i] ^= 0x10
			}
			out.Out = nil
			if b.checkOut(out, portServer, m, 1) == nil {
				t.Error("a packet that did not come out is not missed")
			}
		})
	}
}

// What the check expects is what gopacket makes of the same facts.
func TestTheExpectedFrameIsRight(t *testing.T) {
	src, sport := client(5)
	for _, md := range modes {
		t.Run(md.name, func(t *testing.T) {
			c := choice{endpoint: 7, snat: 2, port: 0xc123, client: md.name == "dnat"}
			b := newBench(nil, Options{Mode: md.name, Proto: "udp"}, 6)
			b.choices[5] = c
			var buf [maxFrame]byte
			got := b.asSent(buf[:], portServer, newMaker(false, header.ProtoUDP, 0), 5)

			mac := endpointMAC(7)
			outside := &layers.IPv4{Version: 4, TTL: 64, Flags: layers.IPv4DontFragment, Protocol: layers.IPProtocolIPv4, SrcIP: ip4(snatNet + 2), DstIP: ip4(endpointNet + 7)}
			inside := &layers.IPv4{Version: 4, TTL: 63, Flags: layers.IPv4DontFragment, Protocol: layers.IPProtocolUDP, SrcIP: ip4(src), DstIP: ip4(vipHost)}
			udp := &layers.UDP{SrcPort: layers.UDPPort(sport), DstPort: layers.UDPPort(vipPort)}
			all := []gopacket.SerializableLayer{&layers.Ethernet{SrcMAC: macWeir[:], DstMAC: mac[:], EthernetType: layers.EthernetTypeIPv4}}
			switch md.name {
			case "nat":
				inside.SrcIP, inside.DstIP = outside.SrcIP, outside.DstIP
				udp.SrcPort, udp.DstPort = layers.UDPPort(c.port), endpointPort
			case "dnat":
				mac = macKernel
				all[0].(*layers.Ethernet).DstMAC = mac[:]
				inside.DstIP, udp.DstPort = outside.DstIP, endpointPort
			case "ipip":
				all = append(all, outside)
			case "gue":
				outside.Protocol = layers.IPProtocolUDP
				// Without a checksum: 12 bytes of UDP and GUE, then the packet.
				head := binary.BigEndian.AppendUint16(nil, c.port)
				head = binary.BigEndian.AppendUint16(head, header.GUEPort)
				head = binary.BigEndian.AppendUint16(head, packetLen4-atIP+12)
				all = append(all, outside, gopacket.Payload(append(head, 0, 0, 0, 4, 0, 0)))
			}
			if err := udp.SetNetworkLayerForChecksum(inside); err != nil {
				t.Fatal(err)
			}
			payload := make(gopacket.Payload, packetLen4-atIP-header.IPv4Len-header.UDPLen)
			payload[0] = 5
			want := gopacket.NewSerializeBuffer()
			err := gopacket.SerializeLayers(want, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, append(all, inside, udp, payload)...)
			if err != nil {
				t.Fatal(err)
			}
			if sum := want.Bytes()[len(want.Bytes())-len(payload)-2:]; sum[0]|sum[1] == 0 {
				sum[0], sum[1] = 0xff, 0xff // RFC 768; gopacket leaves 0
			}
			if !bytes.Equal(got, want.Bytes()) {
				t.Errorf("got  %x\nwant %x", got, want.Bytes())
			}
		})
	}
}

func ip4(n uint32) net.IP { return address(false, n).AsSlice() }

func TestWrongUsageIsSaid(t *testing.T) {
	for _, args := range [][]string{
		{"--flows", "0"}, {"--flows", "1,99999999"}, {"--mode", "teleport"}, {"--ipv6", "--mode", "ipip"}, {"--proto", "icmp"}, {"--workers", "0"}, {"--samples", "0"}, {"more"},
	} {
		cmd := Command()
		cmd.SetArgs(args)
		cmd.SetOut(&bytes.Buffer{})
		cmd.SetErr(&bytes.Buffer{})
		if cmd.Execute() == nil {
			t.Errorf("%v is taken", args)
		}
	}
}
