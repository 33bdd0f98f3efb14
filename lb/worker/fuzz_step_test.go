package worker

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"github.com/weirlb/weir/lb/header"
	"github.com/weirlb/weir/lb/route"
)

// What a step of a program does: its first byte's low bits. With bit 7 no round
// is run after it, so that the next step's frames come in the same batch.
const (
	stepRequest = iota
	stepAnswer
	stepServerError
	stepClientError
	stepPing
	stepFragments
	stepMutate
	stepTable
	stepTime
	stepNeighbor
	stepAnswerFragments
	stepElsewhere
	steps
)

func (r *fuzzRun) step() {
	op := r.next()
	if r.pending > 0 && r.pending >= batchSize/maxBuffers-8 {
		r.turn()
	}
	switch op & 0x7f % steps {
	case stepRequest:
		s, tags, padding := r.request()
		r.injectIP(portClient, s.ip(), tags, padding, true)
	case stepAnswer:
		if s, port, ok := r.answer(); ok {
			r.injectIP(port, s.ip(), 0, int(r.next()%8), true)
		}
	case stepServerError:
		r.serverError()
	case stepClientError:
		r.clientError()
	case stepPing:
		r.ping()
	case stepFragments:
		s, tags, _ := r.request()
		r.fragments(portClient, s.ip(), tags)
	case stepAnswerFragments:
		if s, port, ok := r.answer(); ok {
			r.fragments(port, s.ip(), 0)
		}
	case stepMutate:
		r.mutate()
	case stepTable:
		r.absent ^= 1 << (r.next() % 16)
		r.serveFuzz()
	case stepTime:
		r.now += []uint32{1, secondTicks / 4, secondTicks, 3 * secondTicks, 11 * secondTicks, 400 * secondTicks}[r.next()%6]
		r.lb.flows.Sweep(r.now, 0)
	case stepNeighbor:
		hops := []netip.Addr{endpoint4, endpoint6, narrow4}
		v := r.next()
		r.lb.router.SetState(portServer, hops[v%3], []route.State{route.Valid, route.Resolving, route.Failed}[v/3%3])
	case stepElsewhere:
		r.elsewhere()
	}
	if op&0x80 == 0 {
		r.turn()
	}
}

// sizes of payloads: around the MTUs, the tunnels' and what is quoted.
var fuzzSizes = []int{0, 1, 9, 33, 100, 512, 940, 1200, 1310, 1320, 1332, 1340, 1352, 1360, 1372, 1380, 1440, 1460, 1472, 1480, 1600, 2900, 4000, 8900}

// request is a packet of a client's to a frontend.
func (r *fuzzRun) request() (s shot, tags uint8, padding int) {
	a, b, c, d := r.next(), r.next(), r.next(), r.next()
	six := a & 1
	s = shot{proto: 17, ttl: 64, mark: r.mark(), seq: 1000, ack: 1, df: a&4 == 0, options: a >> 3 & 3, sum: a >> 5 & 3}
	if a&2 != 0 {
		s.proto = 6
		s.flags = []uint8{header.SYN, header.ACK, header.ACK, header.FIN | header.ACK, header.RST, header.SYN | header.ACK, 0, header.RST | header.ACK}[b>>4&7]
		s.seq += uint32(b >> 7)
	}
	if a&0x80 != 0 && d&0x80 != 0 {
		s.proto = []uint8{132, 50, 4, 47}[b>>4&3]
	}
	s.dst = ap(fuzzFrontends[six][c>>7], 80+uint16(b&15))
	s.src = ap([2]netip.Addr{client4, client6}[six], 40000+uint16(c&7))
	switch c >> 3 & 15 {
	case 13: // who has no adjacency
		s.src = ap(s.src.Addr().Next(), s.src.Port())
	case 14: // an endpoint of its own Service
		s.src = ap([2]netip.Addr{endpoint4, endpoint6}[six], s.src.Port())
	case 15:
		s.src = ap(fuzzFrontends[six][0], s.src.Port())
	case 12:
		s.ttl = 1
	}
	s.body = make([]byte, fuzzSizes[int(d&31)%len(fuzzSizes)])
	for i := range s.body {
		s.body[i] = byte(i*7) + s.mark
	}
	if a&0x80 != 0 {
		e := r.next()
		s.extra, tags, padding = e&7, e>>3&3%3, int(e>>5)
	}
	return s, tags, padding
}

// answer is what is sent in return for something that came out.
func (r *fuzzRun) answer() (s shot, port int, ok bool) {
	if len(r.seen) == 0 {
		return s, 0, false
	}
	a, b, d := r.next(), r.next(), r.next()
	v := &r.seen[len(r.seen)-1-int(a)%len(r.seen)]
	src, dst := v.ports()
	s = shot{src: ap(v.dst, dst), dst: ap(v.src, src), proto: v.proto, ttl: 61, mark: r.mark(), df: b&1 == 0,
		options: b >> 1 & 3, sum: b >> 3 & 3, seq: 5000, ack: 1001}
	if s.proto == 6 {
		s.flags = []uint8{header.SYN | header.ACK, header.ACK, header.FIN | header.ACK, header.RST}[b>>5&3]
	}
	s.body = make([]byte, fuzzSizes[int(d&31)%len(fuzzSizes)])
	for i := range s.body {
		s.body[i] = byte(i*5) + s.mark
	}
	s.extra = d >> 5
	return s, r.portOf(v.dst), true
}

// portOf is where packets of an address come in.
func (r *fuzzRun) portOf(a netip.Addr) int {
	switch a {
	case client4, client6:
		return portClient
	case pod4, pod6:
		return portHost
	}
	return portServer
}

// serverError is an ICMP error about something that came out, from its receiver
// or from a router there.
func (r *fuzzRun) serverError() {
	if len(r.seen) == 0 {
		return
	}
	a, b, c := r.next(), r.next(), r.next()
	v := &r.seen[len(r.seen)-1-int(a)%len(r.seen)]
	if b&0x40 != 0 && len(r.tunnels) > 0 { // about the packet as it was on the way
		v = &r.tunnels[len(r.tunnels)-1-int(a)%len(r.tunnels)]
	}
	from := v.dst
	if b&0x80 != 0 {
		from = netip.MustParseAddr("10.9.9.9")
		if v.v6 {
			from = netip.MustParseAddr("2001:db8:99::9")
		}
	}
	r.injectIP(r.portOf(v.dst), icmpErrorAbout(from, v.b, 20+int(c)*6, b, 1300, r.mark()), 0, 0, true)
}

// clientError is an ICMP error about what an endpoint sent a client past Weir.
func (r *fuzzRun) clientError() {
	s, tags, _ := r.request()
	s.src, s.dst = s.dst, s.src
	b, c := r.next(), r.next()
	r.injectIP(portClient, icmpErrorAbout(s.dst.Addr(), s.ip(), 20+int(c)*6, b, 1300, r.mark()), tags, 0, true)
}

func (r *fuzzRun) ping() {
	a, d := r.next(), r.next()
	six := a & 1
	s := shot{src: ap([2]netip.Addr{client4, client6}[six], 0), dst: ap(fuzzFrontends[six][a>>1&1], 0), proto: 1, ttl: 9, mark: r.mark(), extra: a >> 2 & 7, df: a&0x80 != 0}
	typ := uint8(8)
	if six == 1 {
		s.proto, typ = 58, 128
	}
	s.body = append([]byte{typ, 0, 0, 0, 1, 2, 3, 4}, make([]byte, fuzzSizes[int(d&31)%len(fuzzSizes)])...)
	s.sum = d >> 6
	r.injectIP(portClient, s.ip(), a>>5&3%3, 0, true)
}

// fragments cuts a packet, and sends the pieces in some order.
func (r *fuzzRun) fragments(port int, ip []byte, tags uint8) {
	for _, f := range r.pieces(ip) {
		v, err := viewIP(f)
		if err != nil {
			return
		}
		setMark(&v, r.mark())
		r.injectIP(port, v.b, tags, 0, true)
	}
}

// pieces cuts a packet, and returns the pieces in some order.
func (r *fuzzRun) pieces(ip []byte) [][]byte {
	a, b, c := r.next(), r.next(), r.next()
	step := []int{24, 64, 504, 1000, 1304}[a%5]
	var offsets []int
	for at := 0; at < len(ip) && len(offsets) < 5; at += step {
		offsets = append(offsets, at)
	}
	list := fragmentsOf(ip, uint32(c&3), offsets...)
	if len(list) == 0 {
		return nil
	}
	switch b & 7 {
	case 1:
		slices.Reverse(list)
	case 2: // the last first
		list = append(list[len(list)-1:], list[:len(list)-1]...)
	case 3: // twice
		list = append(list, list...)
	case 4: // one is lost
		list = slices.Delete(list, int(c>>2)%len(list), int(c>>2)%len(list)+1)
	case 5: // overlapping ones
		list = append(list, fragmentsOf(ip, uint32(c&3), 0, step/16*8)...)
	}
	return list
}

// setMark writes a mark into a packet.
func setMark(v *view, mark uint8) {
	if v.v6 {
		w := binary.BigEndian.Uint32(v.b)
		binary.BigEndian.PutUint32(v.b, w&^0x0ff00000|uint32(mark)<<20)
		return
	}
	v.b[1] = mark
	seal4(v.b)
}

// mutate sends a frame that went in before once more, with some bits changed or
// its end cut off, and perhaps its checksums put right.
func (r *fuzzRun) mutate() {
	if len(r.in) == 0 {
		return
	}
	a, b := r.next(), r.next()
	old := r.in[len(r.in)-1-int(a)%len(r.in)]
	f := slices.Clone(old.frame)
	if old.err == nil {
		v, l3, _ := viewFrame(f)
		setMark(&v, r.mark())
		for range b & 3 {
			// Most of what matters is in the first bytes.
			at := l3 + int(r.next())%min(len(v.b), 96)
			f[at] ^= r.next()
		}
		if w, _, err := viewFrame(f); b&4 != 0 && (err == nil || err == errChecksum) {
			if err != nil {
				w, err = viewIP(seal4(f[l3:]))
			}
			if err == nil {
				w.seal()
			}
		}
	} else {
		f[int(r.next())%len(f)] ^= r.next()
	}
	if b&8 != 0 {
		f = f[:1+int(r.next())*len(f)/256]
	}
	port := old.port
	if b&16 != 0 {
		port = int(b>>5) % 3
	}
	if r.vlan && port == portServer {
		port = portClient
	}
	r.inject(port, f, false)
}

// elsewhere is a packet that is to no frontend.
func (r *fuzzRun) elsewhere() {
	s, tags, padding := r.request()
	a := r.next()
	six := s.src.Addr().Is6()
	addr := [][2]netip.Addr{{node4, node6}, {snat4, snat6}, {client4, client6}, {pod4, pod6}}[a&3][map[bool]int{true: 1}[six]]
	s.dst = ap(addr, []uint16{22, 61000, 62000, 80}[a>>2&3])
	r.injectIP(int(a>>4)%3, s.ip(), tags, padding, true)
}

func (r *fuzzRun) injectIP(port int, ip []byte, tags uint8, padding int, pristine bool) {
	dst, src := macOf(macWeir), macOf(macClient)
	switch port {
	case portServer:
		dst, src = macOf(macWeirB), macOf(macServer)
	case portHost:
		dst, src = macOf(macXDP), macOf(macKernel)
	}
	r.inject(port, framed(dst, src, tags%3, ip, padding), pristine)
}
