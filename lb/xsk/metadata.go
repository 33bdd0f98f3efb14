package xsk

import "encoding/binary"

// MetadataLen is the number of bytes before a packet that struct
// xsk_tx_metadata takes (kernel: Documentation/networking/xsk-tx-metadata.rst).
const MetadataLen = 24

const (
	txmdChecksum = 1 << 1 // XDP_TXMD_FLAGS_CHECKSUM

	// Offsets in struct xsk_tx_metadata.
	metaFlags          = 0
	metaChecksumStart  = 8
	metaChecksumOffset = 10
	metaLaunchTime     = 16
)

// Prepend makes room for n bytes before the packet d, in the same frame. Metadata
// moves along. Preconditions: the frame has room for n bytes and the metadata.
func (a *Umem) Prepend(d *Desc, n uint32) {
	if d.Options&WithMetadata != 0 {
		m := a.mem[d.Addr-MetadataLen-uint64(n) : d.Addr]
		copy(m, m[n:])
		start := m[metaChecksumStart:]
		binary.NativeEndian.PutUint16(start, binary.NativeEndian.Uint16(start)+uint16(n))
	}
	d.Addr -= uint64(n)
	d.Len += n
}

// SetChecksum asks the kernel or the NIC to complete the checksum of the
// packet d at transmission: the one's complement sum of the bytes from start to
// the end of the packet, where the checksum field, at start+offset, holds the
// sum of the pseudo header. start and offset are in bytes, start from the
// first byte of the packet. offset is 16 for TCP and 6 for UDP.
//
// It writes the MetadataLen bytes before the packet, which must lie in the
// packet's own frame, and sets WithMetadata. Only the first descriptor of a
// packet carries metadata. It does nothing and returns false where the
// checksum field does not lie within d: the kernel would refuse the descriptor and
// everything behind it on the ring, forever.
//
// Only for sockets that were granted transmit metadata: on others the packet is
// not sent.
func (a *Umem) SetChecksum(d *Desc, start, offset uint16) bool {
	if uint32(start)+uint32(offset)+2 > d.Len {
		return false
	}
	m := a.mem[d.Addr-MetadataLen : d.Addr : d.Addr]
	_ = m[MetadataLen-1]
	binary.NativeEndian.PutUint64(m[metaFlags:], txmdChecksum)
	binary.NativeEndian.PutUint64(m[metaChecksumStart:], 0)
	binary.NativeEndian.PutUint16(m[metaChecksumStart:], start)
	binary.NativeEndian.PutUint16(m[metaChecksumOffset:], offset)
	binary.NativeEndian.PutUint64(m[metaLaunchTime:], 0)
	d.Options |= WithMetadata
	return true
}
