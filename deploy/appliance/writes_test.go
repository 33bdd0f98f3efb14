package appliance

import (
	"encoding/binary"
	"os"
	"testing"
)

// write is a write to the disk, with the place of its bytes in the log.
type write struct{ start, size, data int64 }

// meets reports whether a write is to a partition.
func (w write) meets(p partition) bool { return w.start < p.start+p.size && p.start < w.start+w.size }

// The log of writes is that of the kernel's device mapper (dm-log-writes), which QEMU's driver
// blklogwrites writes. The first sector is a header, which a killed emulator leaves empty.
const (
	logSector  = 512
	logFlush   = 1 << 0 // all writes before it are on the disk
	logFUA     = 1 << 1 // so is the write itself
	logDiscard = 1 << 2 // it has no bytes
)

// epochs reads a log: the writes between two flushes each. A write that the end of the
// emulator has cut off is left out.
func epochs(t *testing.T, log *os.File) [][]write {
	t.Helper()
	info, err := log.Stat()
	must(t, err)
	var list [][]write
	var epoch []write
	head := make([]byte, logSector)
	for at := int64(logSector); at+logSector <= info.Size(); {
		_, err := log.ReadAt(head, at)
		must(t, err)
		at += logSector
		flags := binary.LittleEndian.Uint64(head[16:])
		w := write{int64(binary.LittleEndian.Uint64(head)) * logSector, int64(binary.LittleEndian.Uint64(head[8:])) * logSector, at}
		if flags&logFlush != 0 {
			list, epoch = append(list, epoch), nil
		}
		if flags&logDiscard == 0 && w.size > 0 {
			if at += w.size; at > info.Size() {
				break
			}
			epoch = append(epoch, w)
		}
		if flags&logFUA != 0 {
			list, epoch = append(list, epoch), nil
		}
	}
	return append(list, epoch)
}
