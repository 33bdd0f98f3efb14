package header

// IPv6 extension headers (RFC 8200 section 4) and where they end.
const (
	protoHopByHop    = 0
	protoRouting     = 43
	protoFragment    = 44
	protoDestOptions = 60
)

const (
	// maxExtensions in a chain: RFC 8200 names six kinds of which each
	// occurs once, destination options twice.
	maxExtensions = 6
	// maxExtensionBytes of all together. Paths drop chains longer than this
	// anyway (RFC 9098), and L4 stays an offset of a byte.
	maxExtensionBytes = 128

	fragmentLen = 8
)

// parseExtensions goes through the headers between the IPv6 header and the
// transport header. Authentication, encapsulating security and whatever else
// is no extension header that is known here is NotTransport: the kernel's.
func parseExtensions(frame []byte, p *Packet) Problem {
	at, end := int(p.L4), int(p.L3)+int(p.Len)
	first := at
	next := p.Proto
	for n := 0; ; n++ {
		switch next {
		case protoHopByHop, protoRouting, protoDestOptions, protoFragment:
		default:
			p.Proto, p.L4 = next, uint8(at)
			return parseAfterExtensions(frame, p)
		}
		if n == maxExtensions || next == protoHopByHop && at != first || next == protoFragment && p.Frag != 0 {
			return BadExtension
		}
		if at+8 > end || at+8 > len(frame) {
			return p.short()
		}
		size := 8 + 8*int(frame[at+1])
		switch next {
		case protoRouting:
			// Type 0 (RFC 5095), and any other with segments left: the destination address
			// is not the final one.
			if frame[at+2] == 0 || frame[at+3] != 0 {
				return SourceRouted
			}
		case protoFragment:
			size = fragmentLen
			if f := p.setFragment(frame, at); f.Offset > 0 {
				p.Proto, p.L4 = frame[at], uint8(at+size)
				return p.laterFragment(f)
			} else if p.Frag != 0 {
				if problem := f.check(); problem != OK {
					return problem
				}
			}
		}
		next = frame[at]
		if at += size; at-first > maxExtensionBytes {
			return BadExtension
		}
		if at > end || at > len(frame) {
			return p.short()
		}
	}
}

// short is the problem of a chain that is not all there: in a first fragment
// it must be (RFC 7112).
func (p *Packet) short() Problem {
	if p.Frag != 0 {
		return TinyFragment
	}
	return BadExtension
}

// parseAfterExtensions parses the transport header behind extension headers.
func parseAfterExtensions(frame []byte, p *Packet) Problem {
	if p.Frag != 0 {
		return firstFragment(frame, p)
	}
	return parseL4(frame, p, PseudoSum6(frame[p.L3:], p.Proto, p.L4Len()))
}

// IPv4 options that name the route (RFC 791): routers drop packets with them
// (RFC 7126 section 4.3 and 4.4).
const (
	optionEnd = 0
	optionNop = 1
	optionLSR = 131
	optionSSR = 137
)

// options4 goes through the options of an IPv4 header. All but source routes
// are left to whom they concern.
func options4(o []byte) Problem {
	for len(o) > 0 {
		switch o[0] {
		case optionEnd:
			return OK
		case optionNop:
			o = o[1:]
			continue
		case optionLSR, optionSSR:
			return SourceRouted
		}
		if len(o) < 2 || o[1] < 2 || int(o[1]) > len(o) {
			return BadIPHeader
		}
		o = o[o[1]:]
	}
	return OK
}

// optionCopied is the bit of an IPv4 option that every fragment has (RFC 791 section
// 3.1).
const optionCopied = 0x80

// KeepCopiedOptions makes o, the options of an IPv4 header that [Parse] took, those
// of a fragment that is not the first: no-operation in place of an option that the first
// fragment alone has, as in Linux, so that all headers are of the same length.
func KeepCopiedOptions(o []byte) {
	for len(o) > 0 && o[0] != optionEnd {
		n := 1
		if o[0] != optionNop {
			if len(o) < 2 || o[1] < 2 || int(o[1]) > len(o) {
				return
			}
			n = int(o[1])
		}
		if o[0]&optionCopied == 0 {
			for i := range o[:n] {
				o[i] = optionNop
			}
		}
		o = o[n:]
	}
}
