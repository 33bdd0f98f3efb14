package worker

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"testing"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/counter"
	"github.com/weirlb/weir/lb/header"
	"github.com/weirlb/weir/lb/route"
)

// crossing is a packet of a client on its way to the endpoint, and a router's
// error about it with the client's.
type crossing struct {
	*bench
	mode           conntrack.Mode
	inner6, outer6 bool
	outer          []byte // the tunnel packet
	error, told    icmpPacket
}

// cross sends a packet of size bytes through the tunnel, and has it be too big for a
// link of mtu.
func cross(t *testing.T, mode conntrack.Mode, inner6, outer6 bool, size int, mtu uint32) *crossing {
	t.Helper()
	c := &crossing{bench: newBench(t), mode: mode, inner6: inner6, outer6: outer6}
	ep, ipLen := endpoint4, header.IPv4Len
	c.error = icmpPacket{srcMAC: macServer, dstMAC: macWeirB, src: netip.MustParseAddr("10.9.9.9"), dst: snat4, typ: 3, code: 4, rest: mtu}
	c.told = icmpPacket{srcMAC: macWeir, dstMAC: macClient, src: node4, dst: client4, typ: 3, code: 4, df: true}
	if outer6 {
		ep = endpoint6
		c.error.src, c.error.dst, c.error.typ, c.error.code = netip.MustParseAddr("2001:db8:9::9"), snat6, 2, 0
	}
	if inner6 {
		ipLen = header.IPv6Len
		c.told.src, c.told.dst, c.told.typ, c.told.code = node6, client6, 2, 0
	}
	c.serveDirect(mode, ep, nil)
	req := request(inner6, header.ProtoUDP)
	req.payload = size - ipLen - header.UDPLen
	c.outer = c.one(portClient, req.build(t), portServer)[header.EthernetLen:]
	c.told.rest = mtu - uint32(overhead(mode, outer6))
	c.quote(len(c.outer))
	return c
}

// quote makes the error quote n bytes at most, and the client's what that leaves.
func (c *crossing) quote(n int) {
	limit := func(six bool) int {
		if six {
			return 1280 - header.IPv6Len - header.ICMPLen
		}
		return 576 - header.IPv4Len - header.ICMPLen
	}
	c.error.body = c.outer[:min(n, len(c.outer), limit(c.outer6))]
	c.told.body = nil
	if inner := overhead(c.mode, c.outer6); len(c.error.body) > inner {
		body := c.error.body[inner:]
		c.told.body = body[:min(len(body), limit(c.inner6))]
	}
}

func everyTunnel(t *testing.T, test func(t *testing.T, mode conntrack.Mode, inner6, outer6 bool)) {
	for mode, name := range modeNames {
		for n := range 4 {
			if mode != conntrack.ModeL2DSR {
				t.Run(fmt.Sprintf("%s/inner6=%v/outer6=%v", name, n&1 != 0, n&2 != 0), func(t *testing.T) { test(t, mode, n&1 != 0, n&2 != 0) })
			}
		}
	}
}

func TestTheClientIsToldOfANarrowLinkOnTheWayToTheEndpoint(t *testing.T) {
	everyTunnel(t, func(t *testing.T, mode conntrack.Mode, inner6, outer6 bool) {
		c := cross(t, mode, inner6, outer6, 1340, 1350)
		sameFrame(t, c.one(portServer, c.error.build(t), portClient), c.told.build(t))

		// As little as shows whose the packet is, with tags, and by a link that
		// pads frames.
		head := overhead(mode, outer6) + header.IPv4Len + 4
		if inner6 {
			head += header.IPv6Len - header.IPv4Len
		}
		c.quote(head)
		in := append(tags(c.error.build(t), 7, 100), make([]byte, 9)...)
		sameFrame(t, c.one(portServer, in, portClient), c.told.build(t))
		if n := c.w.published.read().Values[counter.ICMPForwarded]; n != 2 || len(c.drops()) != 0 {
			t.Errorf("%d passed, drops %v", n, c.drops())
		}
		c.framesHome()

		// One byte less: nobody can say whose it is.
		c.quote(head - 1)
		given := c.error.build(t)
		c.give(portServer, given)
		out := c.round()
		toKernel := len(out[portHost]) == 1 && bytes.Equal(out[portHost][0][12:], given[12:])
		if len(out[portClient]) != 0 || !toKernel && c.drops()["icmp-no-flow"] != 1 {
			t.Errorf("sent %v, drops %v", out, c.drops())
		}
		c.framesHome()
	})
}

func TestErrorsAboutTunnelsThatAreNotBelieved(t *testing.T) {
	everyTunnel(t, func(t *testing.T, mode conntrack.Mode, inner6, outer6 bool) {
		for name, mtu := range map[string]uint32{"no news": uint32(1340 + overhead(mode, outer6)), "none": 0, "less than any": 67} {
			c := cross(t, mode, inner6, outer6, 1340, mtu)
			c.one(portServer, c.error.build(t), -1)
			if c.drops()["icmp-malformed"] != 1 {
				t.Errorf("%s: drops %v", name, c.drops())
			}
			c.framesHome()
		}
	})
}

// What Weir did not send is the kernel's, which may have tunnels too.
func TestErrorsAboutOtherTunnelsGoToTheKernel(t *testing.T) {
	for name, spoil := range map[string]func(c *crossing){
		"to another endpoint":  func(c *crossing) { c.error.body[19]++ },
		"from another address": func(c *crossing) { c.error.body[15]++; c.error.dst = c.error.dst.Next() },
		"sent to another":      func(c *crossing) { c.error.dst = c.error.dst.Next() },
		"of another client":    func(c *crossing) { c.error.body[20+12]++ },
		"what is no packet":    func(c *crossing) { c.error.body[20] = 0x55 },
		"another protocol":     func(c *crossing) { c.error.body[9] = 47 },
		"of an ended flow":     func(c *crossing) { c.forgetFlows() },
		"another mode now":     func(c *crossing) { c.forgetFlows(); c.serve(endpoint4, endpoint6); c.again() },
	} {
		t.Run(name, func(t *testing.T) {
			c := cross(t, conntrack.ModeIPIP, false, false, 1340, 1350)
			c.error.body = bytes.Clone(c.error.body)
			spoil(c)
			in := c.error.build(t)
			sameFrame(t, c.one(portServer, in, portHost)[12:], in[12:])
			c.framesHome()
		})
	}
}

// again begins the client's flow anew.
func (c *crossing) again() { c.one(portClient, request(false, header.ProtoUDP).build(c.t), portServer) }

func TestWhatMayBeFragmentedIsNotTooBigForARouter(t *testing.T) {
	c := cross(t, conntrack.ModeIPIP, false, false, 1340, 1350)
	c.error.body = bytes.Clone(c.error.body)
	inner := c.error.body[header.IPv4Len:]
	inner[6] &^= 0x40
	inner[10], inner[11] = 0, 0
	binary.LittleEndian.PutUint16(inner[10:], header.Checksum(0, inner[:header.IPv4Len]))
	c.one(portServer, c.error.build(t), -1)
	if c.drops()["icmp-malformed"] != 1 {
		t.Errorf("drops %v", c.drops())
	}
}

func TestIPv6ClientsAreToldOfNoLinkTooNarrowForIPv6(t *testing.T) {
	for _, mode := range []conntrack.Mode{conntrack.ModeIPIP, conntrack.ModeGUE} {
		for _, outer6 := range []bool{false, true} {
			c := cross(t, mode, true, outer6, 1281, 1280)
			c.told.rest = 1280
			sameFrame(t, c.one(portServer, c.error.build(t), portClient), c.told.build(t))

			c = cross(t, mode, true, outer6, 1280, 1280)
			c.one(portServer, c.error.build(t), -1)
			if c.drops()["larger-than-mtu"] != 1 {
				t.Errorf("drops %v", c.drops())
			}
		}
	}
}

func TestErrorsAboutTunnelsAreLimitedPerClient(t *testing.T) {
	c := cross(t, conntrack.ModeGUE, false, true, 1340, 1350)
	in := c.error.build(t)
	told := 0
	c.w.beginRound()
	for range errorsPerSource + 10 {
		c.give(portServer, in)
		told += len(c.roundAtTheSameTime()[portClient])
	}
	if told != errorsPerSource || c.w.drops[DropReplyLimit] != 10 {
		t.Errorf("%d told, drops %v", told, c.drops())
	}
	c.framesHome()
}

func TestAnErrorAboutATunnelNeedsAWayToTheClient(t *testing.T) {
	by := func(routes map[netip.Prefix]route.Path) *crossing {
		c := cross(t, conntrack.ModeIPIP, false, false, 1340, 1350)
		c.lb.router = route.Static(routes, nil)
		c.w.router, c.w.adjacencies = c.lb.router, c.lb.router.Adjacencies()
		c.one(portServer, c.error.build(t), -1)
		return c
	}
	c := by(map[netip.Prefix]route.Path{netip.PrefixFrom(client4, 32): {Kind: route.Attached, Port: portClient, NextHop: client4, MTU: 1500}})
	if len(c.w.neighQueue) != 1 || len(c.drops()) != 0 {
		t.Errorf("%d wait for the next hop, drops %v", len(c.w.neighQueue), c.drops())
	}
	if c = by(nil); c.drops()["no-route"] != 1 {
		t.Errorf("drops %v", c.drops())
	}
}

func TestNoAllocationPerErrorAboutATunnel(t *testing.T) {
	c := cross(t, conntrack.ModeGUE, true, true, 1340, 1350)
	f := c.error.build(t)
	n := testing.AllocsPerRun(200, func() {
		c.give(portServer, f)
		c.w.beginRound()
		c.w.receive()
		c.w.endRound()
		c.q[portClient].Out = c.q[portClient].Out[:0]
	})
	if n != 0 {
		t.Errorf("%v allocations per error", n)
	}
}
