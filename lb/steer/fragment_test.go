package steer

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/gopacket/layers"
	"golang.org/x/sys/unix"
)

const (
	udp = layers.IPProtocolUDP
	tcp = layers.IPProtocolTCP
)

// fragment4 makes the good packet a fragment: of datagram id, at an offset.
func fragment4(packet []byte, id uint16, offset int, more bool) []byte {
	b := slices.Clone(packet)
	place := uint16(offset / 8)
	if more {
		place |= 0x2000
	}
	binary.BigEndian.PutUint16(b[atIP+4:], id)
	binary.BigEndian.PutUint16(b[atFragment:], place)
	return b
}

// extend6 puts an extension header behind the IPv6 header.
func extend6(packet []byte, kind byte, h ...byte) []byte {
	b := slices.Insert(slices.Clone(packet), atIP+40, h...)
	b[atIP+40], b[atNext6] = b[atNext6], kind
	return b
}

func fragment6(packet []byte, id uint32, offset int, more bool) []byte {
	h := make([]byte, 8)
	place := uint16(offset)
	if more {
		place |= 1
	}
	binary.BigEndian.PutUint16(h[2:], place)
	binary.BigEndian.PutUint32(h[4:], id)
	return extend6(packet, unix.IPPROTO_FRAGMENT, h...)
}

type steered struct {
	name   string
	packet []byte
	want   Verdict
}

// fragmentCases are to be run in order: each may depend on those before.
func fragmentCases(t testing.TB) []steered {
	toFront4, toHost4 := packet4(t, udp, front4), packet4(t, udp, at(front4.Addr(), 53))
	toFront6, toHost6 := packet6(t, udp, front6), packet6(t, udp, at(front6.Addr(), 53))
	snat, icmp := packet4(t, udp, at(snat4, 62000)), packet4(t, layers.IPProtocolICMPv4, front4)
	other := slices.Clone(toFront4)
	other[atIP+12] = 203 // another client
	cut := fragment4(packet4(t, tcp, front4), 9, 0, true)[:atTCP4+8]
	vip4, vip6 := packet4(t, udp, at(vip4, 1)), packet6(t, udp, at(vip6, 1))
	ping4, ping6 := packet4(t, layers.IPProtocolICMPv4, at(netip.AddrFrom4([4]byte(vip4[atIP+16:])), 0)), packet6(t, layers.IPProtocolICMPv6, at(netip.AddrFrom16([16]byte(vip6[atIP+24:])), 0))
	return []steered{
		{"IPv4: later before first", fragment4(toFront4, 1, 1480, true), PassFragment},
		{"IPv4: first to a frontend", fragment4(toFront4, 1, 0, true), Redirected},
		{"IPv4: later after first", fragment4(toHost4, 1, 1480, true), Redirected},
		{"IPv4: the last", fragment4(toHost4, 1, 65528, false), Redirected},
		{"IPv4: another identification", fragment4(toFront4, 2, 1480, true), PassFragment},
		{"IPv4: another client", fragment4(other, 1, 1480, true), PassFragment},
		{"IPv4: another protocol", fragment4(packet4(t, tcp, front4), 1, 1480, true), PassFragment},
		{"IPv4: the node's own, first", fragment4(toHost4, 3, 0, true), PassNoMatch},
		{"IPv4: the node's own, later", fragment4(toFront4, 3, 1480, false), PassFragment},
		{"IPv4: the node's own with an identification that was Weir's", fragment4(toHost4, 1, 0, true), PassNoMatch},
		{"IPv4: and what follows it", fragment4(toHost4, 1, 1480, false), PassFragment},
		{"IPv4: an answer to an SNAT port, first", fragment4(snat, 4, 0, true), Redirected},
		{"IPv4: an answer to an SNAT port, later", fragment4(snat, 4, 1480, false), Redirected},
		{"IPv4: below the SNAT ports", fragment4(packet4(t, udp, at(snat4, 53)), 5, 0, true), PassNoMatch},
		{"IPv4: later to an address of frontends only", fragment4(vip4, 6, 1480, true), Redirected},
		{"IPv4: first to no frontend there", fragment4(vip4, 6, 0, true), PassNoMatch},
		{"IPv4: a ping", fragment4(icmp, 7, 0, true), PassOtherProtocol},
		{"IPv4: a later piece of a ping", fragment4(icmp, 7, 1480, true), PassOtherProtocol},
		{"IPv4: a ping of an address of frontends only", fragment4(ping4, 7, 0, true), Redirected},
		{"IPv4: and what follows it", fragment4(ping4, 7, 1480, true), Redirected},
		{"IPv4: a later piece of another ping", fragment4(ping4, 8, 1480, true), Redirected},
		{"IPv4: a cut TCP header to a frontend is Weir's to refuse", cut, Redirected},
		{"IPv4: no ports", cut[:atTCP4+3], PassMalformed},
		{"IPv4: with a priority tag", tagIDs(fragment4(toFront4, 8, 0, true), 0x6000), Redirected},

		{"IPv6: later before first", fragment6(toFront6, 1, 1448, true), PassFragment},
		{"IPv6: first to a frontend", fragment6(toFront6, 1, 0, true), Redirected},
		{"IPv6: later after first", fragment6(toHost6, 1, 1448, false), Redirected},
		{"IPv6: later with another next header", fragment6(packet6(t, tcp, front6), 1, 1448, false), Redirected},
		{"IPv6: another identification", fragment6(toFront6, 0x10001, 1448, true), PassFragment},
		{"IPv6: the node's own, first", fragment6(toHost6, 3, 0, true), PassNoMatch},
		{"IPv6: the node's own, later", fragment6(toFront6, 3, 1448, false), PassFragment},
		{"IPv6: the node's own with an identification that was Weir's", fragment6(toHost6, 1, 0, true), PassNoMatch},
		{"IPv6: and what follows it", fragment6(toHost6, 1, 1448, false), PassFragment},
		{"IPv6: an answer to an SNAT port, first", fragment6(packet6(t, udp, at(snat6, 62000)), 4, 0, true), Redirected},
		{"IPv6: an answer to an SNAT port, later", fragment6(packet6(t, udp, at(snat6, 1)), 4, 1448, true), Redirected},
		{"IPv6: later to an address of frontends only", fragment6(vip6, 6, 1448, true), Redirected},
		{"IPv6: atomic to a frontend", fragment6(toFront6, 5, 0, false), Redirected},
		{"IPv6: nothing is remembered of it", fragment6(toFront6, 5, 1448, false), PassFragment},
		{"IPv6: fragment header cut short", fragment6(toFront6, 5, 0, true)[:atIP+47], PassMalformed},
		{"IPv6: behind options", extend6(fragment6(toFront6, 7, 0, true), 60, 0, 0, 1, 4, 0, 0, 0, 0), Redirected},
		{"IPv6: options in the fragmented part", fragment6(extend6(toFront6, 60, 0, 0, 1, 4, 0, 0, 0, 0), 8, 0, true), Redirected},
		{"IPv6: and what follows it", fragment6(extend6(toFront6, 60, 0, 0, 1, 4, 0, 0, 0, 0), 8, 1448, true), Redirected},
		{"IPv6: a ping", fragment6(packet6(t, layers.IPProtocolICMPv6, front6), 9, 0, true), PassOtherProtocol},
		{"IPv6: a ping of an address of frontends only", fragment6(ping6, 9, 0, true), Redirected},
		{"IPv6: and what follows it", fragment6(ping6, 9, 1448, false), Redirected},
	}
}

// The node's own datagrams and Weir's come at the same time, to one address.
func TestLaterFragmentsFollowTheFirst(t *testing.T) {
	p := newTestProgram(t, false)
	must(t, p.RemoveVIP(front4.Addr())) // the node holds them
	must(t, p.RemoveVIP(front6.Addr()))
	for _, c := range fragmentCases(t) {
		if _, verdict := run(t, p, c.packet); verdict != c.want {
			t.Errorf("%s: %v, want %v", c.name, verdict, c.want)
		}
	}
}

// A flood of datagrams pushes older ones out, and nothing else happens.
func TestFragmentedDatagramsAreBounded(t *testing.T) {
	p := newTestProgram(t, false)
	good := packet4(t, udp, front4)
	const flood = 20000
	for id := range uint16(flood) {
		if _, verdict := run(t, p, fragment4(good, id, 0, true)); verdict != Redirected {
			t.Fatalf("first fragment %d: %v", id, verdict)
		}
	}
	if _, verdict := run(t, p, fragment4(good, flood-1, 8, false)); verdict != Redirected {
		t.Errorf("the last datagram was forgotten: %v", verdict)
	}
	n, entries := 0, p.maps.steer.Fragmented.Iterate()
	for key, since := (steerDatagramKey{}), uint64(0); entries.Next(&key, &since); {
		n++
	}
	if limit := int(p.maps.steer.Fragmented.MaxEntries()); n > limit || n == 0 {
		t.Errorf("%d datagrams remembered, at most %d", n, limit)
	}
}

func TestExtensionHeadersAreLookedBehind(t *testing.T) {
	p := newTestProgram(t, false)
	good, ping := packet6(t, tcp, front6), packet6(t, layers.IPProtocolICMPv6, at(vip6, 0))
	ping[atIP+40] = 128
	options := []byte{0, 0, 1, 4, 0, 0, 0, 0}
	times := func(n int, packet []byte) []byte {
		for range n {
			packet = extend6(packet, unix.IPPROTO_DSTOPTS, options...)
		}
		return packet
	}
	long := make([]byte, 136)
	long[1] = 16
	for _, c := range []steered{
		{"hop-by-hop options", extend6(good, unix.IPPROTO_HOPOPTS, options...), Redirected},
		{"a routing header", extend6(good, unix.IPPROTO_ROUTING, options...), Redirected},
		{"UDP to an SNAT port", extend6(packet6(t, udp, at(snat6, 62000)), unix.IPPROTO_DSTOPTS, options...), Redirected},
		{"not a frontend", extend6(packet6(t, tcp, at(front6.Addr(), 22)), unix.IPPROTO_DSTOPTS, options...), PassNoMatch},
		{"a ping of an address of frontends", extend6(ping, unix.IPPROTO_HOPOPTS, options...), Redirected},
		{"six", times(6, good), Redirected},
		{"seven", times(7, good), PassExtension},
		{"128 bytes", extend6(good, unix.IPPROTO_DSTOPTS, append([]byte{0, 15}, long[:126]...)...), Redirected},
		{"136 bytes", extend6(good, unix.IPPROTO_DSTOPTS, long...), PassExtension},
		{"authentication", extend6(good, unix.IPPROTO_AH, options...), PassExtension},
		{"authentication behind options", extend6(extend6(good, unix.IPPROTO_AH, options...), unix.IPPROTO_DSTOPTS, options...), PassExtension},
		{"mobility", extend6(good, 135, options...), PassExtension},
		{"encapsulated security", extend6(good, unix.IPPROTO_ESP, options...), PassOtherProtocol},
		{"cut short", extend6(good, unix.IPPROTO_HOPOPTS, options...)[:atIP+47], PassMalformed},
		{"transport header cut short", extend6(good, unix.IPPROTO_HOPOPTS, options...)[:atIP+48+19], PassMalformed},
	} {
		if _, verdict := run(t, p, c.packet); verdict != c.want {
			t.Errorf("%s: %v, want %v", c.name, verdict, c.want)
		}
	}
}
