package worker

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/weirlb/weir/lb/header"
)

// sameBehind checks a packet whose addresses are what they were: one of a mode
// without translation, whole or in fragments.
func (r *fuzzRun) sameBehind(port int, v *view, g *given, tunnel bool) error {
	if port != portServer || !isFrontend(v.dst) {
		return errors.New("it is not to a frontend, or not on its way to an endpoint")
	}
	was := g.v
	was.b = slices.Clone(was.b)
	if was.checksum() == sumPartial && (tunnel || v.fragmented) {
		was.complete()
	}
	if s, d := v.checksum(), was.checksum(); !v.fragmented && s != d && (s != sumRight || d != sumPartial) {
		return fmt.Errorf("checksum %v of %v", s, d)
	}
	mend(v, &was)
	if v.fragmented {
		from := v.off - was.off
		if from < 0 || from+len(v.payload()) > len(was.payload()) || !bytes.Equal(v.payload(), was.payload()[from:from+len(v.payload())]) {
			return errors.New("a fragment with other bytes")
		}
		if v.more != (was.more || from+len(v.payload()) < len(was.payload())) || was.fragmented && v.id != was.id {
			return errors.New("a fragment of another place")
		}
		return nil
	}
	if !bytes.Equal(v.b, was.b) {
		return fmt.Errorf("differs from %v", &was)
	}
	return nil
}

// mend makes was what is expected of it: TTL, checksums, a lower segment size.
func mend(v, was *view) {
	if v.v6 {
		was.b[7] = v.b[7]
	} else {
		copy(was.b[8:12], v.b[8:12])
	}
	p, w := v.payload(), was.payload()
	if at := was.sumAt(); at >= 0 && v.sumAt() == at {
		copy(w[at:], p[at:at+2])
	}
	if was.proto == 6 && was.first() && v.first() && min(len(p), len(w)) >= 24 && w[20] == 2 && binary.BigEndian.Uint16(p[22:]) < binary.BigEndian.Uint16(w[22:]) {
		copy(w[22:24], p[22:24])
	}
}

// translated checks a packet with other addresses than it came with.
func (r *fuzzRun) translated(port int, v *view, g *given) error {
	src, dst := v.ports()
	switch {
	case isFrontend(v.src):
		if src != 0 && (src < 80 || int(src) >= 80+len(fuzzServices)) {
			return errors.New("not from the frontend's port")
		}
	case isEndpoint(v.dst) && port != portClient:
		if !isSNAT(v.src) && v.src != g.v.src {
			return errors.New("to an endpoint from an address that is not Weir's")
		}
		if dst != 0 && dst < 8080 {
			return errors.New("to another port than the endpoint's")
		}
	default:
		return errors.New("somebody sees an address that he must not see")
	}
	was, err := g.v.cutAs(v)
	if err != nil {
		return err
	}
	if v.proto != was.proto || v.l4 != was.l4 || len(v.b) != len(was.b) || v.off != was.off || v.more != was.more || v.df != was.df {
		return fmt.Errorf("more has changed of %v", &was)
	}
	got, want := v.checksum(), was.checksum()
	if got == sumPartial && want == sumWrong {
		got = want // by chance, with the port that was chosen
	}
	if got != want && (got != sumRight || want != sumPartial) {
		return fmt.Errorf("checksum %v of %v", got, want)
	}
	if v.first() && (v.proto == 1 || v.proto == 58) {
		return r.translatedError(port, v, &was)
	}
	if v.first() && v.proto != 6 && v.proto != 17 && v.proto != 132 {
		return errors.New("a protocol without ports")
	}
	// Addresses, ports, TTL, identification of a fragment, checksums: no more.
	if v.v6 {
		copy(was.b[8:40], v.b[8:40])
		if v.fragmented {
			was.renumber6(v)
		}
	} else {
		copy(was.b[12:20], v.b[12:20])
		if v.fragmented {
			copy(was.b[4:6], v.b[4:6])
		}
	}
	if v.first() && len(v.payload()) >= 8 {
		copy(was.payload(), v.payload()[:4])
		if v.proto == 132 && len(v.payload()) >= 12 {
			copy(was.payload()[8:], v.payload()[8:12])
		}
	}
	mend(v, &was)
	if !bytes.Equal(v.b, was.b) {
		return fmt.Errorf("differs from %v", &was)
	}
	return nil
}

// cutAs is the part of an IPv4 packet that fragment v is to have, or a copy of the packet
// where v has all of it.
func (was *view) cutAs(v *view) (view, error) {
	out := *was
	out.b = slices.Clone(was.b)
	from, n, all := v.off-was.off, len(v.payload()), len(was.payload())
	if !v.fragmented || v.v6 || was.v6 || n >= all {
		return out, nil
	}
	if was.df || from < 0 || from+n > all || v.l4 != was.l4 {
		return out, errors.New("not a fragment of it")
	}
	field := binary.BigEndian.Uint16(was.b[6:]) + uint16(from/8)
	if from+n < all {
		field |= 0x2000
	}
	out.b = append(out.b[:was.l4:was.l4], was.payload()[from:from+n]...)
	binary.BigEndian.PutUint16(out.b[2:], uint16(len(out.b)))
	binary.BigEndian.PutUint16(out.b[6:], field)
	for i := 20; i < was.l4 && from > 0; i++ {
		if v.b[i] == 1 { // no-operation, where the first fragment alone has the option
			out.b[i] = 1
		}
	}
	out.off, out.more, out.fragmented = v.off, field&0x2000 != 0, true
	return out, nil
}

// renumber6 takes over the identification in an IPv6 fragment header.
func (was *view) renumber6(v *view) {
	for next, at := was.b[6], 40; at+8 <= was.l4; {
		if next == 44 {
			copy(was.b[at+4:at+8], v.b[at+4:at+8])
			return
		}
		next, at = was.b[at], at+8+8*int(was.b[at+1])
	}
}

// translatedError checks an ICMP error and what it quotes.
func (r *fuzzRun) translatedError(port int, v, was *view) error {
	p, w := v.payload(), was.payload()
	if len(p) != len(w) || len(p) < 8+20 || p[0] != w[0] || p[1] != w[1] || !bytes.Equal(p[4:8], w[4:8]) {
		return errors.New("another error")
	}
	q, o := p[8:], w[8:]
	a, b := 12, 16
	if v.v6 {
		if a, b = 8, 24; len(q) < 40 {
			return errors.New("quotes too little")
		}
	}
	if !bytes.Equal(q[a:b], v.dst.AsSlice()) {
		return errors.New("goes to another one than who sent what it quotes")
	}
	if isFrontend(v.src) && !bytes.Equal(q[b:b+b-a], v.src.AsSlice()) {
		return errors.New("shows an address behind the frontend")
	}
	if !v.v6 && int(q[0]&15)*4 <= len(q) && (onesSum(q[:q[0]&15*4]) == 0xffff) != (onesSum(o[:q[0]&15*4]) == 0xffff) {
		return errors.New("the quoted header's checksum")
	}
	x, err := viewIP(q)
	if err != nil {
		return nil // not all of it is quoted
	}
	y, err := viewIP(o)
	if err != nil {
		return fmt.Errorf("what is quoted was %w", err)
	}
	if y.checksum() != x.checksum() && y.checksum() == sumRight {
		return fmt.Errorf("the quoted checksum is %v, was %v", x.checksum(), y.checksum())
	}
	if x.proto != 6 && x.proto != header.ProtoUDP && x.proto != 132 {
		return errors.New("quotes what has no flow")
	}
	return nil
}
