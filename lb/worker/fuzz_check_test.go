package worker

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"net/netip"
	"slices"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"github.com/weirlb/weir/lb/header"
)

// came holds a frame that left by a port to what went in.
func (r *fuzzRun) came(port int, f []byte) {
	if port == portHost && r.punted(f) {
		return
	}
	v, l3, err := viewFrame(f)
	if err != nil {
		r.t.Fatalf("port %d sent what is no packet: %v: %x", port, err, f)
	}
	inner, tunnel := v, false
	if port == portServer {
		inner, tunnel, err = unwrap(&v, r.w.cfg.GUEZeroChecksum)
	}
	reply := !tunnel && (v.proto == 1 && len(v.payload()) > 0 && v.payload()[0] == 0 || v.proto == 58 && len(v.payload()) > 0 && v.payload()[0] == 129)
	if err == nil && uint32(len(v.b)) > fuzzMTU[port] && !reply {
		err = fmt.Errorf("%d bytes on a link of %d", len(v.b), fuzzMTU[port])
	}
	if err == nil && v.tos == 0 {
		err = r.answered(port, f, &v, l3)
	} else if err == nil {
		err = r.forwarded(port, f, &inner, tunnel, len(f)-l3-len(v.b))
		if tunnel {
			r.tunnels = append(r.tunnels, v)
		}
	}
	if err != nil {
		r.t.Fatalf("port %d (vlan %v) sent %x\n%v: %v", port, r.vlan, f[:l3], &v, err)
	}
}

// punted reports whether a frame went in as it is, but for MAC addresses, tags, and a
// checksum that was for a device to complete.
func (r *fuzzRun) punted(f []byte) bool {
	if !bytes.Equal(f[:6], macKernel) || !bytes.Equal(f[6:12], macXDP) {
		return false
	}
	for _, g := range r.in {
		if g.outs > 0 || g.port == portHost || len(g.frame) < 14 {
			continue
		}
		rest := g.frame[12:]
		for n := 0; n < 2 && len(rest) >= 6 && (rest[0] == 0x81 && rest[1] == 0 || rest[0] == 0x88 && rest[1] == 0xa8); n++ {
			rest = rest[4:]
		}
		same := bytes.Equal(f[12:], rest) || bytes.Equal(f[12:], g.frame[12:])
		if !same && g.err == nil && g.v.checksum() == sumPartial {
			v, err := viewIP(slices.Clone(rest[2:]))
			if err != nil {
				continue
			}
			v.complete()
			same = len(f) == 12+len(rest) && bytes.Equal(f[14:14+len(v.b)], v.b)
		}
		if same {
			g.outs++
			return true
		}
	}
	return false
}

// unwrap is the packet inside a tunnel's, of which it checks the outer header.
func unwrap(v *view, zeroSum bool) (view, bool, error) {
	toEndpoint := v.dst == endpoint4 || v.dst == endpoint6 || v.dst == narrow4
	src, dst := v.ports()
	gue := v.proto == 17 && dst == header.GUEPort && src >= 0xc000
	if !toEndpoint || v.fragmented || !gue && v.proto != 4 && v.proto != 41 || v.src != snat4 && v.src != snat6 {
		return *v, false, nil
	}
	next, at := v.proto, v.l4
	if gue {
		l4 := v.payload()
		if int(binary.BigEndian.Uint16(l4[4:])) != len(l4) || len(l4) < 12 || l4[8]|l4[10]|l4[11] != 0 {
			return *v, true, errors.New("wrong UDP or GUE header")
		}
		want := sumNone
		if v.v6 && !zeroSum {
			want = sumRight
		}
		if got := v.checksum(); got != want {
			return *v, true, fmt.Errorf("the outer checksum is %v, want %v", got, want)
		}
		next, at = l4[9], at+12
	}
	in, err := viewIP(v.b[at:])
	if err != nil {
		return in, true, fmt.Errorf("inside the tunnel: %w", err)
	}
	switch {
	case in.v6 != (next == 41) || len(in.b) != len(v.b)-at:
		err = errors.New("the outer header says otherwise")
	case v.ttl != 64 || v.tos != in.tos || !v.v6 && v.df != in.df:
		err = fmt.Errorf("outer TTL %d, TOS %d, DF %v of inner TOS %d, DF %v", v.ttl, v.tos, v.df, in.tos, in.df)
	case v.l4 != map[bool]int{true: 40, false: 20}[v.v6]:
		err = errors.New("the outer header has options")
	}
	return in, true, err
}

// answered checks what Weir made by itself: of no mark.
func (r *fuzzRun) answered(port int, f []byte, v *view, l3 int) error {
	if v.ttl != 64 || v.fragmented || v.checksum() != sumRight {
		return fmt.Errorf("an answer with TTL %d and checksum %v", v.ttl, v.checksum())
	}
	var all []error
	for _, g := range r.in {
		if g.err != nil || g.v.src != v.dst || g.v.dst != v.src || g.outs > 0 {
			continue
		}
		if inPort, _ := r.entered(g); inPort != port {
			continue
		}
		if why := r.answers(g, f, v); why == nil {
			g.outs++
			return nil
		} else {
			all = append(all, fmt.Errorf("%w: %v", why, &g.v))
		}
	}
	if err := r.relayed(port, f, v); err != nil {
		return fmt.Errorf("an answer to nothing: %w", errors.Join(append(all, err)...))
	}
	return nil
}

// relayed checks an error that Weir made of a router's about a tunnel packet: it
// says, of what that quotes, what concerns the client.
func (r *fuzzRun) relayed(port int, f []byte, v *view) error {
	p, kind := v.payload(), [2]byte{3, 4}
	if v.v6 {
		kind = [2]byte{2, 0}
	}
	if len(p) < 8+24 || [2]byte(p) != kind || v.proto != 1 && v.proto != 58 {
		return errors.New("no error that a packet is too big")
	}
	a := 12
	if v.v6 {
		a = 8
	}
	sender, receiver := v.dst.AsSlice(), v.src.AsSlice()
	if q := p[8:]; !bytes.Equal(q[a:a+len(sender)], sender) || !bytes.Equal(q[a+len(sender):a+2*len(sender)], receiver) {
		return errors.New("it does not go to who sent what it quotes")
	}
	for _, g := range r.in {
		if g.err == nil && g.outs == 0 && isSNAT(g.v.dst) && len(g.v.payload()) > 8 && bytes.Contains(g.v.payload()[8:], p[8:]) {
			g.outs++
			if told, of := binary.BigEndian.Uint16(p[6:]), uint16(1300); told >= of {
				return fmt.Errorf("tells %d of %d", told, of)
			}
			return macsOf(port, f)
		}
	}
	return errors.New("no router said so")
}

// entered is the port that a frame came by, VLANs counted, and its tags there.
func (r *fuzzRun) entered(g *given) (int, []byte) {
	tags := g.frame[12 : g.l3-2]
	if r.vlan && g.port == portClient && bytes.HasPrefix(tags, []byte{0x88, 0xa8, 0, 5}) {
		return portServer, tags[4:]
	}
	return g.port, tags
}

func (r *fuzzRun) answers(g *given, f []byte, v *view) error {
	_, tags := r.entered(g)
	if !bytes.Equal(f[:6], g.frame[6:12]) || !bytes.Equal(f[6:12], g.frame[:6]) || !bytes.Equal(f[12:12+len(tags)], tags) {
		return errors.New("does not go back by the way that the packet came")
	}
	p, was := v.payload(), g.v.payload()
	if v.proto == 6 {
		a, b := g.v.ports()
		src, dst := v.ports()
		if g.v.proto == 6 && len(was) >= 20 && was[13]&(header.SYN|header.ACK|header.RST) == header.SYN &&
			len(p) == header.TCPLen && p[13] == header.ACK && src == b && dst == a {
			r.challenges++ // the flow's endpoint is gone
			return nil
		}
		if g.v.proto != 6 || len(was) < 20 || p[13]&header.RST == 0 || was[13]&header.RST != 0 || src != b || dst != a {
			return errors.New("no RST for it")
		}
		if !hasResetNumbers(p, was, g.v.fragmented) {
			return errors.New("a RST with another number")
		}
		return nil
	}
	if v.proto == 132 {
		return refusesSCTP(v, g)
	}
	limit := 576
	if v.v6 {
		limit = 1280
	}
	if v.proto != 1 && v.proto != 58 || len(v.b) > limit || g.v.proto == v.proto || g.v.off > 0 {
		return errors.New("no ICMP error that may be")
	}
	if !bytes.HasPrefix(g.v.b, p[8:]) || len(p) < 8+min(len(g.v.b), 40) {
		return fmt.Errorf("quotes another packet than %v", &g.v)
	}
	return nil
}

// refusesSCTP checks an ABORT, or the SHUTDOWN COMPLETE for a SHUTDOWN ACK, as the
// answer to a packet of no association (RFC 9260 section 8.4): with the tag of
// that packet, said to be reflected, or the one that an INIT asks for.
func refusesSCTP(v *view, g *given) error {
	const abort, shutdownAck, shutdownComplete, initiate = 6, 8, 14, 1
	p, was := v.payload(), g.v.payload()
	a, b := g.v.ports()
	src, dst := v.ports()
	if g.v.proto != 132 || len(p) < 16 || len(was) < 16 || was[12] == abort || src != b || dst != a {
		return errors.New("no ABORT for it")
	}
	if p[12] != abort && (p[12] != shutdownComplete || was[12] != shutdownAck) {
		return fmt.Errorf("chunk %d in answer to chunk %d", p[12], was[12])
	}
	reflected := p[13]&1 == 1 && bytes.Equal(p[4:8], was[4:8])
	asked := was[12] == initiate && len(was) >= 20 && p[13]&1 == 0 && bytes.Equal(p[4:8], was[16:20])
	if !reflected && !asked {
		return errors.New("an ABORT with another tag")
	}
	return nil
}

// forwarded checks what is a packet that went in, on its way, with some padding.
func (r *fuzzRun) forwarded(port int, f []byte, v *view, tunnel bool, padding int) error {
	err := errors.New("a packet of nothing")
	for _, g := range r.in {
		if g.err != nil || g.v.tos != v.tos {
			continue
		}
		if padding > len(g.frame)-g.l3-len(g.v.b) {
			err = errors.New("it got padding")
			continue
		}
		if err = r.cameOf(port, f, v, g, tunnel); err == nil {
			if g.pristine && g.v.l4 <= 40 && g.v.proto != 132 {
				err = gopacketTakes(f)
			}
			if !v.fragmented && (v.proto == 6 || v.proto == 17) && port != portClient {
				r.seen = append(r.seen, *v)
			}
			return err
		}
	}
	return err
}

func (r *fuzzRun) cameOf(port int, f []byte, v *view, g *given, tunnel bool) error {
	if endsFor(v) && !endsFor(&g.v) {
		return g.endsReceiver(port, f, v)
	}
	if err := onlyOnce(v, g); err != nil {
		return err
	}
	var err error
	if isEcho(&g.v) {
		err = echoed(f, v, g)
	} else {
		if err = macsOf(port, f); err != nil {
			return err
		}
		if v.ttl != g.v.ttl-1 {
			return fmt.Errorf("TTL %d of %d", v.ttl, g.v.ttl)
		}
		if v.src == g.v.src && v.dst == g.v.dst {
			err = r.sameBehind(port, v, g, tunnel)
		} else if tunnel {
			err = errors.New("translated and in a tunnel")
		} else {
			err = r.translated(port, v, g)
		}
	}
	if err == nil {
		if v.fragmented && len(v.payload()) < len(g.v.payload()) {
			g.pieces[v.off] = true
		} else {
			g.outs++
		}
	}
	return err
}

// endsFor reports whether v is a whole RST or ABORT with nothing else.
func endsFor(v *view) bool {
	b := v.payload()
	return !v.fragmented && (v.proto == 6 && len(b) == 20 && b[13]&4 != 0 || v.proto == 132 && len(b) == 16 && b[12] == 6)
}

// endsReceiver checks one of the RSTs, or the ABORT, that tell the receiver of g of the end of the
// connection.
func (g *given) endsReceiver(port int, f []byte, v *view) error {
	if g.told++; g.told > 2 || v.ttl != g.v.ttl-1 || v.checksum() != sumRight {
		return fmt.Errorf("RST or ABORT %d with TTL %d of %d, checksum %v", g.told, v.ttl, g.v.ttl, v.checksum())
	}
	return macsOf(port, f)
}

func onlyOnce(v *view, g *given) error {
	if g.outs > 0 || len(g.pieces) > 0 && !v.fragmented || g.pieces[v.off] {
		return errors.New("sent twice")
	}
	return nil
}

func isEcho(v *view) bool {
	p := v.payload()
	return !v.fragmented && len(p) >= 8 && (v.proto == 1 && !v.v6 && p[0] == 8 || v.proto == 58 && v.v6 && p[0] == 128)
}

func echoed(f []byte, v *view, g *given) error {
	p, was := v.payload(), g.v.payload()
	switch {
	case v.src != g.v.dst || v.dst != g.v.src || v.ttl != 64 || v.proto != g.v.proto:
		return errors.New("wrong addresses or TTL of a reply")
	case !bytes.Equal(f[:6], g.frame[6:12]) || !bytes.Equal(f[6:12], g.frame[:6]):
		return errors.New("the reply does not go where the ping came from")
	case p[0] != map[bool]uint8{true: 129, false: 0}[v.v6] || p[1] != was[1] || !bytes.Equal(p[4:], was[4:]):
		return errors.New("not the reply")
	case v.checksum() != g.v.checksum():
		return fmt.Errorf("checksum %v of %v", v.checksum(), g.v.checksum())
	}
	return nil
}

// macsOf holds the MAC addresses to those of a port's neighbors.
func macsOf(port int, f []byte) error {
	dst, src := f[:6], f[6:12]
	ok := false
	switch port {
	case portClient:
		ok = bytes.Equal(dst, macClient) && bytes.Equal(src, macWeir)
	case portServer:
		ok = bytes.Equal(dst, macServer) && bytes.Equal(src, macWeirB)
	case portHost:
		ok = bytes.Equal(dst, macKernel) && (bytes.Equal(src, macXDP) || bytes.Equal(src, macReturn)) && (f[12] == 8 || f[12] == 0x86)
	}
	if !ok {
		return fmt.Errorf("MAC addresses %x of nobody there", f[:12])
	}
	return nil
}

func isFrontend(a netip.Addr) bool {
	return slices.Contains(fuzzFrontends[0][:], a) || slices.Contains(fuzzFrontends[1][:], a)
}

func isEndpoint(a netip.Addr) bool {
	return slices.Contains([]netip.Addr{endpoint4, endpoint6, narrow4, pod4, pod6}, a)
}

func isSNAT(a netip.Addr) bool {
	return a == snat4 || a == snat6 || slices.Contains(hop4[:], a) || slices.Contains(hop6[:], a)
}

// gopacketTakes decodes a frame of which all is known to be in order.
func gopacketTakes(f []byte) error {
	pkt := gopacket.NewPacket(f, layers.LayerTypeEthernet, gopacket.DecodeOptions{NoCopy: true})
	// What follows the ports it takes for what they are known for (VXLAN at 4789).
	if e := pkt.ErrorLayer(); e != nil && pkt.TransportLayer() == nil && !pkt.Metadata().Truncated {
		return fmt.Errorf("gopacket: %w", e.Error())
	}
	return nil
}

// hasResetNumbers reports whether a RST has the numbers of an answer to a segment (RFC 9293, section
// 3.10.7.1). Of the first fragment of a segment without ACK the length is not known.
func hasResetNumbers(rst, segment []byte, fragment bool) bool {
	if segment[13]&header.ACK != 0 {
		return rst[13]&header.ACK == 0 && bytes.Equal(rst[4:8], segment[8:12])
	}
	length := len(segment) - int(segment[12]>>4)*4 + bits.OnesCount8(segment[13]&(header.SYN|header.FIN))
	end := binary.BigEndian.Uint32(segment[4:]) + uint32(length)
	return rst[13]&header.ACK != 0 && binary.BigEndian.Uint32(rst[4:]) == 0 && (fragment || binary.BigEndian.Uint32(rst[8:]) == end)
}
