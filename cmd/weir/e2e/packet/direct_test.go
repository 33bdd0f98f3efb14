package packet

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/google/gopacket/layers"
	corev1 "k8s.io/api/core/v1"
)

const (
	protoIPIP = 4
	protoIPv6 = 41
	guePort   = 6080
)

func init() {
	wanted[l2dsr], wanted[ipip], wanted[gue] = redirected, wrapped, wrapped
	definitions["here"] = definition{endpoints: []endpoint{pod}}
	definitions["beyond"] = definition{endpoints: []endpoint{{60, 5, "other"}}}
	definitions["clamped"] = definition{edit: func(s *corev1.Service) { s.Annotations["weir.dev/mss-clamp"] = "1200" }}
	definitions["fitting"] = definition{edit: func(s *corev1.Service) { s.Annotations["weir.dev/mss-clamp"] = "auto" }}
}

// redirected is p with the endpoint's MAC address.
func redirected(s *scene, p packet, got []byte) []byte {
	s.Helper()
	s.stays(p.src, s.chosen(got))
	return s.requested(p).bytes(s)
}

// requested is the client's packet as the endpoint is to get it.
func (s *scene) requested(p packet) packet {
	p.srcMAC, p.dstMAC, p.ttl = edge1MAC, mac(s.seen.network, s.seen.host), p.ttl-1
	return p
}

// stays remembers what must be the same for all packets of the flow.
func (s *scene) stays(source netip.AddrPort, e endpoint) {
	s.Helper()
	if s.snat.IsValid() && (s.snat != source || s.seen != e) {
		s.Errorf("the flow moved: from %v at %v to %v at %v", s.snat, s.seen, source, e)
	}
	s.snat, s.seen = source, e
}

// wrapped is p in the mode's outer header.
func wrapped(s *scene, p packet, got []byte) []byte {
	s.Helper()
	s.tunnel(got)
	inner := s.requested(p)
	return s.wrap(p, inner.bytes(s)[inner.l3():], got)
}

// told is the error about the tunnel packet that carried p, from a router there to
// Weir, and what the client gets of it: both quote what there is room for.
func (s *scene) told(p packet, tunnel []byte, mtu int) (fromRouter, toClient packet) {
	s.Helper()
	o := packet{srcMAC: mac(s.seen.network, s.seen.host), dstMAC: edge1MAC, tags: s.tags, ttl: 61}
	most := quoted4
	if s.six {
		most = quoted6
	}
	body := tunnel[ipOffset(tunnel):]
	body = body[:min(len(body), most)]
	fromRouter = s.icmp(o, tooBig, s.router(), s.snat.Addr(), uint32(mtu), body)
	return fromRouter, s.about(s.back(p), body[linkMTU-s.room(linkMTU):], tooBig, uint32(s.room(mtu)))
}

// tunnel remembers the ends of the tunnel that got came by.
func (s *scene) tunnel(got []byte) {
	s.Helper()
	e := s.chosen(got)
	source := netip.AddrPortFrom(endpoint{e.network, 1, ""}.addr(s.six), 0)
	if s.mode == gue {
		port, _ := ports(got)
		if port < 0xc000 {
			s.Errorf("GUE from port %d", port)
		}
		source = netip.AddrPortFrom(source.Addr(), port)
	}
	s.stays(source, e)
}

// wrap is the tunnel packet that carries inner, of the client's packet p.
func (s *scene) wrap(p packet, inner, got []byte) []byte {
	s.Helper()
	o := packet{srcMAC: edge1MAC, dstMAC: mac(s.seen.network, s.seen.host), src: s.snat,
		dst: netip.AddrPortFrom(s.seen.addr(s.six), guePort), tos: p.tos, ttl: 64, df: s.six || p.df, proto: protoIPIP, l4: inner}
	if s.six {
		o.proto = protoIPv6
	} else if !o.df { // the number is Weir's to choose
		o.id = binary.BigEndian.Uint16(got[o.l3()+4:])
	}
	if s.mode == gue {
		o.payload = append([]byte{0, o.proto, 0, 0}, inner...)
		o.proto, o.l4, o.noChecksum = protoUDP, nil, !s.six
	}
	out := o.bytes(s)
	if s.six { // so is the flow label
		word := binary.BigEndian.Uint32(out[o.l3():]) | binary.BigEndian.Uint32(got[o.l3():])&0xfffff
		binary.BigEndian.PutUint32(out[o.l3():], word)
	}
	return out
}

// mss is a SYN that announces a segment size, behind a no-operation so that the
// option lies at an odd offset.
func (s *scene) mss(size uint16) packet {
	p := s.tcp(syn, 1000, 0, "")
	p.tcpOptions = []layers.TCPOption{
		{OptionType: layers.TCPOptionKindNop},
		{OptionType: layers.TCPOptionKindMSS, OptionLength: 4, OptionData: binary.BigEndian.AppendUint16(nil, size)},
		{OptionType: layers.TCPOptionKindNop}, {OptionType: layers.TCPOptionKindNop}, {OptionType: layers.TCPOptionKindNop},
	}
	return p
}

// arrivesChanged sends p and checks that it is delivered as q would be.
func (s *scene) arrivesChanged(p, q packet) {
	s.Helper()
	s.send(p)
	s.delivered(q)
}

func init() {
	add(
		scenario{row: "new", name: "udp", modes: dsrModes, run: func(s *scene) { s.passes(s.udp("hello")) }},
		scenario{row: "new", name: "tcp-syn", modes: dsrModes, run: func(s *scene) { s.passes(s.tcp(syn, 1000, 0, "")) }},
		scenario{row: "new", name: "tcp-syn-with-data", modes: dsrModes, run: func(s *scene) { s.passes(s.tcp(syn, 1000, 0, "fast open")) }},
		scenario{row: "new", name: "udp-without-checksum", modes: dsrModes, families: []int{ipv4}, run: func(s *scene) {
			p := s.udp("hello")
			p.noChecksum = true
			s.passes(p)
		}},
		scenario{row: "new", name: "mss-clamped", modes: dsrModes, service: "clamped", run: func(s *scene) {
			s.arrivesChanged(s.mss(1460), s.mss(1200))
			s.arrivesChanged(s.mss(1460), s.mss(1200)) // sent again
		}},
		scenario{row: "new", name: "mss-fits-the-tunnel", modes: dsrModes, service: "fitting", run: func(s *scene) {
			head := 40
			if s.six {
				head = 60
			}
			s.arrivesChanged(s.mss(9000), s.mss(uint16(s.room(linkMTU)-head)))
		}},
		scenario{row: "new", name: "small-mss-stays", modes: dsrModes, service: "clamped", run: func(s *scene) { s.passes(s.mss(536)) }},
		scenario{row: "new", name: "endpoint-on-this-node", modes: dsrModes, service: "here", run: func(s *scene) {
			s.mode = dnat
			s.passes(s.udp("hello"))
			s.returns(s.answer(s.udp("its answer")), udpPort)
		}},
		scenario{row: "new", name: "endpoint-behind-a-router", modes: []string{l2dsr}, service: "beyond", run: func(s *scene) {
			s.send(s.udp("hello"))
		}, drops: drop("not-l2-adjacent")},
		scenario{row: "flow", name: "udp-again", modes: dsrModes, run: func(s *scene) {
			s.passes(s.udp("one"))
			s.passes(s.udp("two"))
		}},
		scenario{row: "flow", name: "tcp", modes: dsrModes, run: func(s *scene) {
			s.passes(s.tcp(syn, 1000, 0, ""))
			s.passes(s.tcp(ack, 1001, 5001, ""))
			s.passes(s.tcp(ack|psh, 1001, 5001, "GET /"))
			s.passes(s.tcp(ack|fin, 1006, 5001, ""))
			s.passes(s.tcp(ack, 1007, 5002, ""))
		}},
		scenario{row: "flow", name: "reset-by-client", modes: dsrModes, run: func(s *scene) {
			s.passes(s.tcp(syn, 1000, 0, ""))
			s.passes(s.tcp(ack, 1001, 5001, ""))
			s.passes(s.tcp(rst|ack, 1001, 5001, ""))
		}},
		scenario{row: "flow", name: "port-used-again", modes: dsrModes, run: func(s *scene) {
			s.passes(s.tcp(syn, 1000, 0, ""))
			s.passes(s.tcp(ack|fin, 1001, 5001, ""))
			s.passes(s.tcp(syn, 9000, 0, ""))
		}},
		scenario{row: "no-flow", name: "ack-is-taken-up", modes: dsrModes, run: func(s *scene) {
			s.passes(s.tcp(ack|psh, 1001, 5001, "in the middle"))
			s.passes(s.tcp(ack|psh, 1014, 5001, "and on"))
		}},
		scenario{row: "no-flow", name: "fin-is-taken-up", modes: dsrModes, run: func(s *scene) { s.passes(s.tcp(ack|fin, 1001, 5001, "")) }},
		scenario{row: "no-flow", name: "rst-is-passed-on", modes: dsrModes, run: func(s *scene) { s.passes(s.tcp(rst, 1001, 0, "")) }},
		scenario{row: "no-endpoint", name: "tcp-is-reset", modes: dsrModes, service: "empty", run: func(s *scene) {
			p := s.tcp(syn, 1000, 0, "")
			s.send(p)
			r := s.back(p)
			r.flags, r.seq, r.ack = rst|ack, 0, 1001
			s.arrives(s.lab.client, r.bytes(s))
		}, drops: drop("no-endpoint")},
		scenario{row: "no-local", name: "udp-dropped", modes: dsrModes, service: "no-local", run: func(s *scene) {
			s.send(s.udp("a question"))
		}, drops: drop("no-local-endpoint")},
		scenario{row: "router", name: "ttl-1", modes: dsrModes, run: func(s *scene) {
			p := s.udp("hello")
			p.ttl = 1
			s.send(p)
			s.refusedBy(p, timeExceeded, 0)
		}, drops: drop("ttl-exceeded")},
		scenario{row: "router", name: "ttl-1-of-a-flow", modes: dsrModes, run: func(s *scene) {
			s.passes(s.udp("hello"))
			p := s.udp("again")
			p.ttl = 1
			s.send(p)
			s.refusedBy(p, timeExceeded, 0)
		}, drops: drop("ttl-exceeded")},
		scenario{row: "router", name: "ttl-2", modes: dsrModes, run: func(s *scene) {
			p := s.udp("hello")
			p.ttl = 2
			s.passes(p)
		}},
		scenario{row: "options", name: "ipv4-options", modes: dsrModes, families: []int{ipv4}, run: func(s *scene) {
			p := s.udp("hello")
			p.options = []layers.IPv4Option{{OptionType: 148, OptionLength: 4, OptionData: []byte{0, 0}}} // router alert
			s.passes(p)
		}},
	)
	for ecn, name := range []string{"not-ect", "ect-1", "ect-0", "ce"} {
		for _, dscp := range []uint8{0, 46} {
			add(scenario{row: "flow", name: fmt.Sprintf("%s-dscp-%d", name, dscp), modes: dsrModes, run: func(s *scene) {
				p := s.udp("hello")
				p.tos = dscp<<2 | uint8(ecn)
				s.passes(p)
			}})
		}
	}
}
