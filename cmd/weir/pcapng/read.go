package pcapng

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// maxBlock bounds a block: a frame with options.
const maxBlock = 1 << 20

// Copy copies whole blocks from r, which a Writer of this package writes, to w until r
// ends. A block that r has only a part of is left out: then, and where r reports it, the
// error is io.ErrUnexpectedEOF. It returns the number of packets, and the number of lost
// packets that the last statistics of all interfaces have together.
func Copy(w io.Writer, r io.Reader) (packets, lost uint64, err error) {
	head := make([]byte, 8)
	var block []byte
	lostOn := map[uint32]uint64{} // by interface
	for {
		if _, err := io.ReadFull(r, head); err != nil {
			if errors.Is(err, io.EOF) {
				err = nil
			}
			return packets, lost, err
		}
		n := binary.LittleEndian.Uint32(head[4:])
		if n < 12 || n > maxBlock || n%4 != 0 {
			return packets, lost, fmt.Errorf("pcapng: block of %d bytes", n)
		}
		block = append(block[:0], head...)
		block = append(block, make([]byte, n-8)...)
		if _, err := io.ReadFull(r, block[8:]); err != nil {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return packets, lost, err
		}
		if _, err := w.Write(block); err != nil {
			return packets, lost, err
		}
		switch binary.LittleEndian.Uint32(block) {
		case BlockPacket:
			packets++
		case blockStatistics:
			if of, n, ok := lostOf(block); ok {
				lost += n - lostOn[of]
				lostOn[of] = n
			}
		}
	}
}

// lostOf is the number of lost packets in a block of statistics, of the interface of.
func lostOf(block []byte) (of uint32, n uint64, ok bool) {
	if len(block) < 24 {
		return 0, 0, false
	}
	of = binary.LittleEndian.Uint32(block[8:])
	for o := block[20:]; len(o) >= 4; {
		code, n := binary.LittleEndian.Uint16(o), int(binary.LittleEndian.Uint16(o[2:]))
		if code == optDropped && n == 8 && len(o) >= 12 {
			return of, binary.LittleEndian.Uint64(o[4:]), true
		}
		o = o[min(len(o), 4+(n+3)&^3):]
	}
	return of, 0, false
}
