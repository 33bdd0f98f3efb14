// Package pcapng writes captures in the format pcapng (IETF draft-ietf-opsawg-pcapng):
// Ethernet frames of several interfaces, with comments.
package pcapng

import (
	"encoding/binary"
	"io"
)

// Block types (section 11.1 of the draft), and codes of options.
const (
	blockSection    = 0x0a0d0d0a
	blockInterface  = 1
	blockStatistics = 5
	BlockPacket     = 6

	optComment     = 1
	optApplication = 4 // of a section
	optName        = 2 // of an interface
	optDescription = 3 // of an interface
	optResolution  = 9 // of an interface
	optFlags       = 2 // of a packet
	optPacketID    = 5 // of a packet
	optReceived    = 4 // of statistics
	optDropped     = 5 // of statistics
)

const (
	byteOrder   = 0x1a2b3c4d
	linkType    = 1 // Ethernet
	nanoseconds = 9 // negative power of ten
)

// Direction is the direction of a packet.
type Direction uint32

// Directions, as the flags of a packet have them.
const (
	Inbound  Direction = 1
	Outbound Direction = 2
)

// Writer writes a section. It writes each block by a single call, so that a reader of a
// part of the file finds whole blocks.
type Writer struct {
	w          io.Writer
	snap       int
	interfaces int
	block      []byte
}

// NewWriter begins a section, with the names of the application and a comment. snap is the
// number of bytes of a frame that are kept.
func NewWriter(w io.Writer, application, comment string, snap int) (*Writer, error) {
	o := &Writer{w: w, snap: snap}
	o.begin(blockSection)
	o.u32(byteOrder)
	o.u16(1) // version 1.0
	o.u16(0)
	o.u64(^uint64(0)) // of unknown length
	o.text(optApplication, application)
	o.text(optComment, comment)
	return o, o.end()
}

// Interface describes another interface and returns its number.
func (w *Writer) Interface(name, description string) (int, error) {
	w.begin(blockInterface)
	w.u16(linkType)
	w.u16(0)
	w.u32(uint32(w.snap))
	w.text(optName, name)
	w.text(optDescription, description)
	w.option(optResolution, []byte{nanoseconds})
	w.interfaces++
	return w.interfaces - 1, w.end()
}

// Packet is a frame.
type Packet struct {
	Interface int
	Direction Direction
	Time      int64  // in ns since 1970
	ID        uint64 // the same for a packet on several interfaces
	Length    int    // of the frame; Data may be shorter
	Data      []byte
	Comment   string
}

// Packet writes a frame.
func (w *Writer) Packet(p *Packet) error {
	w.begin(BlockPacket)
	w.u32(uint32(p.Interface))
	w.time(p.Time)
	w.u32(uint32(len(p.Data)))
	w.u32(uint32(p.Length))
	w.block = append(w.block, p.Data...)
	w.pad()
	w.text(optComment, p.Comment)
	w.option(optFlags, binary.LittleEndian.AppendUint32(nil, uint32(p.Direction)))
	w.option(optPacketID, binary.LittleEndian.AppendUint64(nil, p.ID))
	return w.end()
}

// Statistics writes the numbers of packets of an interface that there were, and that were lost of
// them on the way to the file, at a time in ns since 1970.
func (w *Writer) Statistics(of int, at int64, received, lost uint64) error {
	w.begin(blockStatistics)
	w.u32(uint32(of))
	w.time(at)
	w.option(optReceived, binary.LittleEndian.AppendUint64(nil, received))
	w.option(optDropped, binary.LittleEndian.AppendUint64(nil, lost))
	return w.end()
}

func (w *Writer) begin(kind uint32) {
	w.block = w.block[:0]
	w.u32(kind)
	w.u32(0) // the length, once it is known
}

// end ends the options, and writes the block.
func (w *Writer) end() error {
	w.u32(0)
	n := uint32(len(w.block) + 4)
	binary.LittleEndian.PutUint32(w.block[4:], n)
	w.u32(n)
	_, err := w.w.Write(w.block)
	return err
}

func (w *Writer) u16(v uint16) { w.block = binary.LittleEndian.AppendUint16(w.block, v) }
func (w *Writer) u32(v uint32) { w.block = binary.LittleEndian.AppendUint32(w.block, v) }
func (w *Writer) u64(v uint64) { w.block = binary.LittleEndian.AppendUint64(w.block, v) }

// time writes a time, the upper half first.
func (w *Writer) time(ns int64) {
	w.u32(uint32(uint64(ns) >> 32))
	w.u32(uint32(ns))
}

func (w *Writer) text(code uint16, s string) {
	if s != "" {
		w.option(code, []byte(s))
	}
}

func (w *Writer) option(code uint16, v []byte) {
	v = v[:min(len(v), 1<<16-1)]
	w.u16(code)
	w.u16(uint16(len(v)))
	w.block = append(w.block, v...)
	w.pad()
}

// pad fills up to a multiple of four bytes.
func (w *Writer) pad() {
	for len(w.block)%4 != 0 {
		w.block = append(w.block, 0)
	}
}
