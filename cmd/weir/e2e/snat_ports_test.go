package e2e

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/lb/steer"
	"github.com/weirlb/weir/perf/netlab"
	"github.com/weirlb/weir/perf/netlab/patience"
	"github.com/weirlb/weir/perf/netlab/workload"
)

// manyClients are clients of a Service that each have a UDP flow.
type manyClients struct {
	tap    *netlab.Tap
	frames [][]byte
}

// perAddress is the number of them at an address.
const perAddress = 1000

// newManyClients has n clients behind the client's host.
func newManyClients(t *testing.T, f *fixture, n int, to netip.AddrPort) *manyClients {
	t.Helper()
	must(t, f.Edge.Edge.AddRoute("eth0", netip.MustParsePrefix("44.0.0.0/8"), clientAddr(false)))
	tap, err := netlab.NewTap(f.Client, "eth0")
	must(t, err)
	t.Cleanup(func() { tap.Close() })
	edge, err := f.Edge.Edge.Interface("eth0")
	must(t, err)
	client, err := f.Client.Interface("eth0")
	must(t, err)
	c := &manyClients{tap: tap}
	eth := &layers.Ethernet{SrcMAC: client.Attrs().HardwareAddr, DstMAC: edge.Attrs().HardwareAddr, EthernetType: layers.EthernetTypeIPv4}
	for i := range n {
		ip := &layers.IPv4{
			Version: 4, TTL: 64, Protocol: layers.IPProtocolUDP, DstIP: to.Addr().AsSlice(),
			SrcIP: net.IPv4(44, 0, byte(i/perAddress>>8), byte(i/perAddress+1)),
		}
		udp := &layers.UDP{SrcPort: layers.UDPPort(perAddress + i%perAddress), DstPort: layers.UDPPort(to.Port())}
		must(t, udp.SetNetworkLayerForChecksum(ip))
		buf := gopacket.NewSerializeBuffer()
		must(t, gopacket.SerializeLayers(buf, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, eth, ip, udp, gopacket.Payload("who is there?")))
		c.frames = append(c.frames, buf.Bytes())
	}
	return c
}

// exchange has every client ask until it has an answer.
func (c *manyClients) exchange() error {
	missing := map[int]bool{}
	end := time.Now().Add(within)
	for next := 0; next < len(c.frames) || len(missing) > 0; {
		for ; next < len(c.frames) && len(missing) < 250; next++ {
			missing[next] = true
		}
		for i := range missing {
			if err := c.tap.Send(c.frames[i]); err != nil {
				return err
			}
		}
		for len(missing) > 0 {
			b, _, err := c.tap.Receive(patience.For(50 * time.Millisecond))
			if errors.Is(err, os.ErrDeadlineExceeded) {
				break
			}
			if err != nil {
				return err
			}
			if len(b) >= 42 && b[12] == 8 && b[13] == 0 && b[23] == 17 && b[30] == 44 {
				delete(missing, (int(b[32])<<8+int(b[33])-1)*perAddress+int(binary.BigEndian.Uint16(b[36:]))-perAddress)
			}
		}
		if len(missing) > 0 && time.Now().After(end) {
			return fmt.Errorf("%d of %d clients have no answer", len(missing)+len(c.frames)-next, len(c.frames))
		}
	}
	return nil
}

// More than 30,000 clients have a flow to one endpoint at the same time, by default. They keep it when
// Weir is killed, and when the next process cannot look flows up in the kernel and has the smaller range.
// Ports of the same range stay the node's own: those of connections and servers that it had before them.
// Their packets are the kernel's, as are those to its ephemeral ports.
func TestWireAnEndpointHasThirtyThousandConnections(t *testing.T) {
	t.Parallel()
	const clients = 31_000
	f := ownFixture(t, options{services: []service{toAttached}})
	status := func() *api.Status {
		t.Helper()
		s, err := f.admin.Status(inTime(t, within))
		must(t, err)
		return s
	}
	if s := status().Flows.SNATPorts; s.Reason != "" || s.Count < clients || s.Ports != "61000-65535,1024-29999" {
		t.Fatalf("flows have ports %+v", s)
	}
	// The node's own connections to the same endpoint, and a server, at ports that flows could have.
	at := netip.AddrPortFrom(attached.addr(false), echoTarget)
	own := map[string]net.Conn{}
	before := status().Flows.SNATPorts.Count
	for _, network := range []string{"tcp", "udp"} {
		for _, port := range []int{20000, 62000} {
			d := &net.Dialer{LocalAddr: &net.TCPAddr{Port: port}}
			if network == "udp" {
				d.LocalAddr = &net.UDPAddr{Port: port}
			}
			c, err := f.Edge.Edge.DialWith(inTime(t, within), d, network, at.String())
			must(t, err)
			defer c.Close()
			own[fmt.Sprint(network, " from port ", port)] = c
		}
	}
	server, err := f.Edge.Edge.Listen("tcp", net.JoinHostPort(netlab.Host4(netlab.ClientNet, 1).String(), "20001"))
	must(t, err)
	defer server.Close()
	must(t, f.poll(func(ctx context.Context) error { // the next look
		s, err := f.admin.Status(ctx)
		if err == nil && s.Flows.SNATPorts.Count != before-3 {
			err = fmt.Errorf("%d ports, want %d", s.Flows.SNATPorts.Count, before-3)
		}
		return err
	}))
	c := newManyClients(t, f, clients, toAttached.at(echoPort, false))
	checkOwn := func(when string, kernel bool) {
		t.Helper()
		var taken uint64
		if kernel {
			taken = status().Steering[steer.Redirected.String()]
		}
		for name, c := range own {
			lost := 0
			for n := range 100 {
				err := workload.PingPong(c, fmt.Sprint(workload.WhoAreYou, n), within)
				if err == nil {
					continue
				}
				if lost++; lost > 2 || strings.HasPrefix(name, "tcp") { // a datagram may be lost
					t.Errorf("%s: %s: %v", when, name, err)
					break
				}
			}
		}
		if kernel {
			if n := status().Steering[steer.Redirected.String()] - taken; n > 50 {
				t.Errorf("%s: %d packets of the node's own connections were not the kernel's", when, n)
			}
		}
		ephemeral, err := f.Edge.Edge.DialContext(inTime(t, within), "tcp", at.String())
		must(t, err)
		defer ephemeral.Close()
		if err := workload.PingPong(ephemeral, "hello", within); err != nil {
			t.Errorf("%s: from an ephemeral port: %v", when, err)
		}
		in, err := f.Client.DialContext(inTime(t, within), "tcp", server.Addr().String())
		if err != nil {
			t.Errorf("%s: a server of the node: %v", when, err)
			return
		}
		in.Close()
	}
	checkFlows := func(when string, created uint64) {
		t.Helper()
		if err := c.exchange(); err != nil {
			t.Errorf("%s: %v; %s", when, err, f.whatWasDropped())
		}
		if s := status().Flows; s.Current < clients || s.Created > created || s.NoPort > 0 {
			t.Errorf("%s: flows %+v", when, s)
		}
	}
	checkFlows("at first", clients)
	checkOwn("at first", true)

	must(t, f.weir.Kill())
	checkOwn("after a kill", false)
	must(t, f.start())
	checkFlows("in the next process", 0)
	checkOwn("in the next process", true)

	f.opts.extra = "flowCache: {mode: off}"
	must(t, os.WriteFile(f.path("config.yaml"), []byte(f.config()), 0o644))
	must(t, f.weir.Kill())
	must(t, f.start())
	if s := status().Flows.SNATPorts; !strings.HasPrefix(s.Reason, "flowCache.mode is off; until flows of the last process end") || s.Ports != "61000-65535" {
		t.Errorf("without the flow cache flows have ports %+v", s)
	}
	checkFlows("without the flow cache", 0)
	checkOwn("without the flow cache", false)
}
