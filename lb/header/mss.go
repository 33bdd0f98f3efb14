package header

import "encoding/binary"

// ClampMSS lowers the maximum segment size that a SYN or SYN-ACK announces to
// at most mss, and returns the amount that this adds to the TCP checksum's delta (see
// [Update]); 0 when nothing changed. A segment without the option says 536 or
// 1220 already (RFC 9293 section 3.7.1). l4 must hold the whole TCP header.
func ClampMSS(l4 []byte, mss uint16) (delta uint64) {
	end := TCP(l4).DataOffset()
	for at := TCPLen; at < end; {
		switch l4[at] {
		case 0: // end of list
			return 0
		case 1: // no operation
			at++
			continue
		}
		if at+1 >= end {
			return 0
		}
		n := int(l4[at+1])
		if n < 2 || at+n > end {
			return 0
		}
		if l4[at] == 2 && n == 4 {
			return clampOption(l4, at+2, mss)
		}
		at += n
	}
	return 0
}

// clampOption stores mss at l4[at:] if less is not there yet.
func clampOption(l4 []byte, at int, mss uint16) uint64 {
	if binary.BigEndian.Uint16(l4[at:]) <= mss {
		return 0
	}
	// An option may begin anywhere: the words that a checksum is made of are
	// those at even offsets.
	from := at &^ 1
	old := sumWords(l4[from:], at-from)
	binary.BigEndian.PutUint16(l4[at:], mss)
	return uint64(^Fold(old)) + sumWords(l4[from:], at-from)
}

// sumWords is the sum of a word, or of two where an odd offset touches both.
func sumWords(b []byte, odd int) uint64 {
	s := uint64(binary.LittleEndian.Uint16(b))
	if odd != 0 {
		s += uint64(binary.LittleEndian.Uint16(b[2:]))
	}
	return s
}
