package steer

import (
	"encoding/binary"

	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/lb/header"
)

// makePartial leaves the pseudo header's sum as the checksum.
func (s *segment) makePartial(c *flowCase) {
	binary.LittleEndian.PutUint16(s.frame[s.l4+checksumOffset(c.proto):], s.pseudoSum(c))
	s.partial = true
}

func (s *segment) pseudoSum(c *flowCase) uint16 {
	ip := s.frame[14:]
	if c.v6 {
		return header.Fold(header.PseudoSum6(ip, c.proto, int(binary.BigEndian.Uint16(ip[4:]))))
	}
	return header.Fold(header.PseudoSum4(ip, c.proto, int(binary.BigEndian.Uint16(ip[2:]))-header.IPv4Len))
}

// looksPartial reports whether the checksum is the pseudo header's sum: by chance, that of one
// packet in 65,536 is.
func (s *segment) looksPartial(c *flowCase) bool {
	at := s.l4 + checksumOffset(c.proto)
	return len(s.frame) >= at+2 && binary.LittleEndian.Uint16(s.frame[at:]) == s.pseudoSum(c)
}

// makeAlike changes the last bytes of the payload so that the pseudo header's sum is the whole
// checksum, as by chance.
func (s *segment) makeAlike(c *flowCase) {
	ip := s.frame[14:]
	end := 14 + int(binary.BigEndian.Uint16(ip[2:]))
	if c.v6 {
		end = 54 + int(binary.BigEndian.Uint16(ip[4:]))
	}
	l4 := s.frame[s.l4:end] // without the padding of the frame
	at := (len(l4) - 2) &^ 1
	if c.proto == unix.IPPROTO_TCP && at < int(l4[12]>>4)*4 || at < 8 {
		return // there is no payload
	}
	s.makePartial(c)
	s.partial, s.alike = false, true
	copy(l4[at:], []byte{0, 0})
	pseudo := binary.LittleEndian.Uint16(l4[checksumOffset(c.proto):])
	binary.LittleEndian.PutUint16(l4[at:], header.Checksum(uint64(pseudo), l4))
}

func checksumOffset(proto uint8) int {
	if proto == unix.IPPROTO_TCP {
		return 16
	}
	return 6
}
