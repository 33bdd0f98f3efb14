package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/vishvananda/netlink"

	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/lb/counter"
	"github.com/weirlb/weir/perf/netlab"
)

// Kernels without bonds and VLAN interfaces are shown a stand-in for one: a
// veth that holds its addresses and routes and that nothing is sent by, and a
// file that declares what it stands for. Everything below it is real.

var (
	stackedMAC = net.HardwareAddr{2, 0, 0, 0, 0, 0x64}
	farMAC     = net.HardwareAddr{2, 0, 0, 0, 0, 0x65}
	stackedNet = netip.MustParsePrefix("10.110.0.1/24")
	farAddr    = netip.MustParseAddr("10.110.0.2")
)

// priorityTag is a control field of priority 5 and no VLAN.
const priorityTag = 5 << 13

// stacked is a fixture whose Weir is shown declared links.
type stacked struct {
	*fixture
	taps map[string]*netlab.Tap // of the client's interfaces
}

func newStacked(t *testing.T, name, interfaces, links string, prepare func(*stacked)) *stacked {
	t.Helper()
	f := ownFixture(t, options{edge: netlab.EdgeConfig{Queues: 2}, services: []service{toAttached, toPod}, stopped: true, interfaces: interfaces})
	s := &stacked{fixture: f, taps: map[string]*netlab.Tap{}}
	s.standIn(t, name)
	if prepare != nil {
		prepare(s)
	}
	s.declare(t, links)
	f.opts.env = []string{"WEIR_LINKS=" + f.path("links.json")}
	must(t, f.start())
	return s
}

// standIn makes the stand-in of a bond or a VLAN interface.
func (s *stacked) standIn(t *testing.T, name string) {
	t.Helper()
	edge := s.Edge.Edge
	must(t, netlab.Connect(netlab.End{Namespace: edge, Name: name, MAC: stackedMAC, Addrs: []netip.Prefix{stackedNet}},
		netlab.End{Namespace: edge, Name: "standin"}, netlab.LinkConfig{}))
	link, err := edge.Interface(name)
	must(t, err)
	must(t, edge.Netlink().NeighAdd(&netlink.Neigh{LinkIndex: link.Attrs().Index, State: netlink.NUD_PERMANENT,
		IP: farAddr.AsSlice(), HardwareAddr: farMAC}))
}

func (s *stacked) declare(t *testing.T, links string) {
	t.Helper()
	must(t, os.WriteFile(s.path("links.new"), []byte(links), 0o600))
	must(t, os.Rename(s.path("links.new"), s.path("links.json")))
}

func (s *stacked) tap(t *testing.T, name string) *netlab.Tap {
	t.Helper()
	if s.taps[name] == nil {
		tap, err := netlab.NewTap(s.Client, name)
		must(t, err)
		t.Cleanup(func() { tap.Close() })
		s.taps[name] = tap
	}
	return s.taps[name]
}

// datagram is a UDP packet from the far station to a Service's echo port; tag 0
// is none.
func datagram(t *testing.T, to netip.AddrPort, port, tag uint16, payload string) []byte {
	t.Helper()
	eth := &layers.Ethernet{SrcMAC: farMAC, DstMAC: stackedMAC, EthernetType: layers.EthernetTypeIPv4}
	ip := &layers.IPv4{Version: 4, TTL: 64, Protocol: layers.IPProtocolUDP, SrcIP: farAddr.AsSlice(), DstIP: to.Addr().AsSlice()}
	udp := &layers.UDP{SrcPort: layers.UDPPort(port), DstPort: layers.UDPPort(to.Port())}
	must(t, udp.SetNetworkLayerForChecksum(ip))
	list := []gopacket.SerializableLayer{eth, ip, udp, gopacket.Payload(payload)}
	if tag != 0 {
		eth.EthernetType = layers.EthernetTypeDot1Q
		list = []gopacket.SerializableLayer{eth, &layers.Dot1Q{VLANIdentifier: tag & 0xfff, Priority: uint8(tag >> 13), Type: layers.EthernetTypeIPv4}, ip, udp, gopacket.Payload(payload)}
	}
	buf := gopacket.NewSerializeBuffer()
	must(t, gopacket.SerializeLayers(buf, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, list...))
	return buf.Bytes()
}

// answered sends a datagram by one interface of the client until its echo arrives
// at another, as a frame to the far station with the same tag.
func (s *stacked) answered(t *testing.T, svc service, in, out string, port, tag uint16) {
	t.Helper()
	to := svc.at(echoPort, false)
	payload := fmt.Sprintf("to %s by %s and back by %s with tag %d", svc.name, in, out, tag)
	sent, at := s.tap(t, in), s.tap(t, out)
	deadline := time.Now().Add(within)
	for time.Now().Before(deadline) {
		must(t, sent.Send(datagram(t, to, port, tag, payload)))
		frame := echo(t, at, payload)
		if frame == nil {
			continue
		}
		want := datagram(t, to, port, tag, payload)
		if !bytes.Equal(frame[0:6], farMAC) || !bytes.Equal(frame[6:12], stackedMAC) {
			t.Errorf("%s: from %x to %x", payload, frame[6:12], frame[0:6])
		}
		l3 := 14
		if tag != 0 {
			l3 = 18
		}
		if !bytes.Equal(frame[12:l3], want[12:l3]) {
			t.Errorf("%s: tag and type %x, want %x", payload, frame[12:l3], want[12:l3])
		}
		src, dst := netip.AddrFrom4([4]byte(frame[l3+12:])), netip.AddrFrom4([4]byte(frame[l3+16:]))
		if src != to.Addr() || dst != farAddr || toPort(frame[l3:]) != port {
			t.Errorf("%s: from %v to %v port %d", payload, src, dst, toPort(frame[l3:]))
		}
		return
	}
	t.Errorf("%s: no answer; %s", payload, s.whatWasDropped())
}

// toPort is the destination port of a UDP packet without IP options.
func toPort(ip []byte) uint16 { return uint16(ip[22])<<8 | uint16(ip[23]) }

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// echo is the next frame that ends with payload, nil when none comes soon.
func echo(t *testing.T, at *netlab.Tap, payload string) []byte {
	t.Helper()
	for {
		frame, _, err := at.Receive(200 * time.Millisecond)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return nil
		}
		must(t, err)
		if bytes.HasSuffix(frame, []byte(payload)) {
			return frame
		}
	}
}

// A VLAN interface is its parent's sockets and its tag, also beside the parent
// itself, and towards endpoints by an interface and behind the kernel.
func TestWireVLANInterface(t *testing.T) {
	for _, c := range []struct{ name, interfaces string }{
		{"with its parent", "[{name: eth0}, {name: eth0.100}, {name: eth1}]"},
		{"alone", "[{name: eth0.100}, {name: eth1}]"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newStacked(t, "eth0.100", c.interfaces, `[{"Name": "eth0.100", "Kind": "vlan", "Parent": "eth0", "VLAN": 100}]`, nil)
			for i, svc := range []service{toAttached, toPod} {
				s.answered(t, svc, "eth0", "eth0", uint16(5000+i), 100)
			}
			status, err := s.admin.Status(inTime(t, within))
			must(t, err)
			if i := interfaceOf(status, "eth0.100"); i == nil || i.VLAN != 100 || i.Device != "eth0" || i.Mode != "native" {
				t.Errorf("the VLAN's status is %+v", i)
			}
			if c.name == "alone" {
				if status.Steering["vlan"] == 0 {
					// What is untagged is the kernel's.
					must(t, s.tap(t, "eth0").Send(datagram(t, toAttached.at(echoPort, false), 6000, 0, "untagged")))
					must(t, s.poll(func(ctx context.Context) error {
						status, err := s.admin.Status(ctx)
						if err == nil && status.Steering["vlan"] == 0 {
							err = errors.New("an untagged packet was not passed")
						}
						return err
					}))
				}
				return
			}
			s.checkLoad(t, s.Client, toAttached.at(httpPort, false), 50)
			s.checkTransfers(t, toPod, true, 1<<20)
		})
	}
}

// The kernel takes the tag off packets of established flows, and puts it on answers, at each hook.
func TestWireVLANInTheKernel(t *testing.T) {
	for _, hook := range []string{"xdp", "tcx"} {
		t.Run(hook, func(t *testing.T) {
			interfaces := fmt.Sprintf("[{name: eth0.100, hook: %[1]s}, {name: eth1, hook: %[1]s}]", hook)
			s := newStacked(t, "eth0.100", interfaces, `[{"Name": "eth0.100", "Kind": "vlan", "Parent": "eth0", "VLAN": 100}]`, func(s *stacked) {
				s.opts.extra = "flowCache: {mode: auto}\n"
				must(t, s.configure())
				must(t, s.Client.SetOffloads("eth0", asFromWire))
				must(t, s.Fabric.SetOffloads("edge", map[string]bool{"rx-gro": true}))
				must(t, s.ZoneA.SetOffloads("eth0", asFromWire))
			})
			must(t, s.poll(func(ctx context.Context) error {
				s.answered(t, toAttached, "eth0", "eth0", 5000, 100)
				status, err := s.admin.Status(ctx)
				if err != nil {
					return err
				}
				for _, name := range []string{"eth0", "eth1"} {
					if i := interfaceOf(status, name); i == nil || i.Hook != hook || i.Repeated == nil || i.Repeated.Packets < 2 {
						return fmt.Errorf("the kernel has not forwarded what came by %s: %+v", name, i)
					}
				}
				return nil
			}))
		})
	}
}

// A VLAN that Weir is not attached to is the kernel's: what comes by it does not leave
// for another network, with or without its tag. A priority tag (VLAN 0) names no VLAN.
func TestWireOnlyAttachedVLANsAreTaken(t *testing.T) {
	f := ownFixture(t, options{services: []service{toAttached}})
	s := &stacked{fixture: f, taps: map[string]*netlab.Tap{}}
	edge, err := f.Edge.Edge.Interface("eth0")
	must(t, err)
	client, err := f.Client.Interface("eth0")
	must(t, err)
	to := toAttached.at(echoPort, false)
	from := func(tag, port uint16, payload string) []byte {
		frame := datagram(t, to, port, tag, payload)
		copy(frame, edge.Attrs().HardwareAddr)
		copy(frame[6:], client.Attrs().HardwareAddr)
		return frame
	}
	fabric, err := netlab.NewTap(f.Fabric, "edge")
	must(t, err)
	t.Cleanup(func() { fabric.Close() })

	must(t, s.tap(t, "eth0").Send(from(100, 7000, "of VLAN 100")))
	must(t, f.poll(func(ctx context.Context) error {
		status, err := f.admin.Status(ctx)
		if err == nil && status.Steering["vlan"]+status.Workers[0].Counters[counter.TxPackets] == 0 {
			err = errors.New("nothing has become of the tagged packet")
		}
		return err
	}))
	// Behind it one with a priority tag, which is answered by a real server.
	answer := []byte(nil)
	must(t, f.poll(func(context.Context) error {
		frame := from(priorityTag, 7001, "of no VLAN")
		must(t, s.tap(t, "eth0").Send(frame))
		if answer = echo(t, s.tap(t, "eth0"), "of no VLAN"); answer == nil {
			return fmt.Errorf("no answer; %s", f.whatWasDropped())
		}
		return nil
	}))
	if answer[12] != 8 || answer[13] != 0 || toPort(answer[14:]) != 7001 {
		t.Errorf("the answer is %x", answer)
	}
	for {
		frame, _, err := fabric.Receive(200 * time.Millisecond)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return
		}
		must(t, err)
		if frame[12] == 0x81 || bytes.HasSuffix(frame, []byte("of VLAN 100")) {
			t.Errorf("towards the endpoints left %x", frame)
		}
	}
}

// A bond is its members' sockets; packets leave by the members that it uses.
func TestWireBond(t *testing.T) {
	const links = `[{"Name": "bond0", "Kind": "bond", "Bond": "active-backup"},
		{"Name": "m0", "Kind": "veth", "Master": "bond0", "Active": %t}, {"Name": "m1", "Kind": "veth", "Master": "bond0", "Active": %t}]`
	s := newStacked(t, "bond0", "[{name: eth0}, {name: bond0}, {name: eth1}]", fmt.Sprintf(links, true, false), func(s *stacked) {
		for _, m := range []string{"m0", "m1"} {
			must(t, netlab.Connect(netlab.End{Namespace: s.Edge.Edge, Name: m, MAC: stackedMAC},
				netlab.End{Namespace: s.Client, Name: m}, netlab.LinkConfig{}))
		}
	})
	s.answered(t, toAttached, "m0", "m0", 5000, 0)
	s.answered(t, toPod, "m1", "m0", 5001, 0) // received by a backup, all the same
	s.declare(t, fmt.Sprintf(links, false, true))
	s.answered(t, toAttached, "m0", "m1", 5000, 0) // the flow that there was
	s.answered(t, toAttached, "m1", "m1", 5002, 0)
	s.declare(t, fmt.Sprintf(links, true, true))
	s.spreads(t, "m0", "m1")
	status, err := s.admin.Status(inTime(t, within))
	must(t, err)
	if i := interfaceOf(status, "m1"); i == nil || i.Interface != "bond0" || i.Inactive {
		t.Errorf("the member's status is %+v", i)
	}
}

// spreads waits until the answers of many flows have left by both interfaces.
func (s *stacked) spreads(t *testing.T, a, b string) {
	t.Helper()
	const payload = "by which of them?"
	must(t, s.poll(func(context.Context) error {
		for port := range uint16(32) {
			must(t, s.tap(t, a).Send(datagram(t, toAttached.at(echoPort, false), 7000+port, 0, payload)))
		}
		for _, name := range []string{a, b} {
			if echo(t, s.tap(t, name), payload) == nil {
				return fmt.Errorf("nothing leaves by %s", name)
			}
		}
		return nil
	}))
}

func interfaceOf(s *api.Status, name string) *api.Interface {
	for i := range s.Interfaces {
		if s.Interfaces[i].Name == name {
			return &s.Interfaces[i]
		}
	}
	return nil
}
