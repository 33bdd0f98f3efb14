package fragtrack

import "github.com/weirlb/weir/lb/header"

// Verdict is the answer of [Datagram.Take].
type Verdict uint8

// Verdicts.
const (
	Pass     Verdict = iota
	Overlap          // a duplicate, or it overlaps with others and ends the datagram
	TooMany          // there are too many gaps
	verdicts         // how many there are
)

// Verdicts is the number of verdicts.
const Verdicts = int(verdicts)

// maxSpans is the number of spans, with gaps between them, that a datagram may have.
const maxSpans = 8

// passed is the part of a datagram's payload that has passed.
type passed struct {
	end        uint32 // bytes of payload in all, 0: the last fragment has not come
	overlapped bool   // fragments overlapped
	n          uint8  // of spans, which are in order and do not touch
	spans      [maxSpans]span
}

// span is a range of the payload, in units of eight bytes.
type span struct{ from, to uint16 }

// Begun reports whether the first fragment has passed.
func (p *passed) Begun() bool { return p.n > 0 && p.spans[0].from == 0 }

// Complete reports whether all fragments have passed.
func (p *passed) Complete() bool {
	return p.end > 0 && p.n == 1 && p.spans[0] == span{0, uint16((p.end + 7) / 8)}
}

// Take notes a fragment that is about to pass. A fragment within a span is a duplicate. A
// fragment that overlaps otherwise, or disagrees about the end, ends the datagram: no more
// of it passes, so that it cannot be reassembled (RFC 5722, RFC 8200 section 4.5).
func (p *passed) Take(f *header.Fragment) Verdict {
	if p.overlapped {
		return Overlap
	}
	end := uint32(f.Offset + f.Len)
	s := span{uint16(f.Offset / 8), uint16((end + 7) / 8)}

	at := 0 // the first span that ends behind where s begins
	for at < int(p.n) && p.spans[at].to <= s.from {
		at++
	}
	next := at < int(p.n)
	agrees := p.agrees(end, f.More)

	if next && agrees && p.spans[at].from <= s.from && s.to <= p.spans[at].to {
		return Overlap // a duplicate
	}
	if next && p.spans[at].from < s.to || !agrees {
		p.overlapped = true
		return Overlap
	}

	// Join it with its neighbors, or put it between them.
	before := at > 0 && p.spans[at-1].to == s.from
	after := next && p.spans[at].from == s.to
	switch {
	case before && after:
		p.spans[at-1].to = p.spans[at].to
		copy(p.spans[at:], p.spans[at+1:p.n])
		p.n--
	case before:
		p.spans[at-1].to = s.to
	case after:
		p.spans[at].from = s.from
	case p.n == maxSpans:
		return TooMany
	default:
		copy(p.spans[at+1:], p.spans[at:p.n])
		p.spans[at] = s
		p.n++
	}

	if !f.More {
		p.end = end
	}
	return Pass
}

// agrees reports whether a fragment that ends at end fits the datagram's known end.
func (p *passed) agrees(end uint32, more bool) bool {
	switch {
	case more:
		return p.end == 0 || end < p.end
	case p.end > 0:
		return end == p.end
	}
	return p.n == 0 || uint32(p.spans[p.n-1].to) <= (end+7)/8
}
