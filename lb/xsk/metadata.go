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

// SetChecksum asks the kernel or the NIC to complete the checksum of the
// packet d on its way out: the one's complement sum of the bytes from start to
// the end of the packet, where the checksum field, at start+offset, holds the
// sum of the pseudo header. start and offset are in bytes, start from the
// first byte of the packet. offset is 16 for TCP and 6 for UDP.
//
// It writes the MetadataLen bytes before the packet, which must lie in the
// packet's own frame, and sets WithMetadata. Only the first descriptor of a
// packet carries metadata. To be used on sockets that were granted it: others
// count such a packet as invalid and do not send it.
func (a *Area) SetChecksum(d *Desc, start, offset uint16) {
	m := a.mem[d.Addr-MetadataLen : d.Addr : d.Addr]
	_ = m[MetadataLen-1]
	nativePut64(m[metaFlags:], txmdChecksum)
	nativePut64(m[metaChecksumStart:], 0)
	binary.NativeEndian.PutUint16(m[metaChecksumStart:], start)
	binary.NativeEndian.PutUint16(m[metaChecksumOffset:], offset)
	nativePut64(m[metaLaunchTime:], 0)
	d.Options |= WithMetadata
}

func nativePut64(b []byte, v uint64) { binary.NativeEndian.PutUint64(b, v) }
