package conntrack

import (
	"fmt"
	"hash/crc32"
	"unsafe"

	"github.com/weirlb/weir/conntrack/schema"
	"github.com/weirlb/weir/conntrack/statefile"
)

// lastTable is the table that an earlier process has left, as its header describes it.
type lastTable struct {
	version  uint32
	maxFlows int64
	// own: the layout is that of this process, which can go on with the memory itself.
	own    bool
	reader *reader // nil if it cannot be restored
	// mismatch is why it cannot be restored, "" if it can; cause is that as a label.
	mismatch string
	cause    statefile.Cause
}

// examine looks at a table of size bytes, which begins with page: headerSize bytes, or all if
// there are less.
func examine(page []byte, size int64) *lastTable {
	l := &lastTable{}
	l.mismatch, l.cause = l.read(page, size)
	return l
}

// restorable reports whether there is a table that can be restored.
func (l *lastTable) restorable() bool { return l != nil && l.mismatch == "" }

// sameAs reports whether a process with room for maxFlows can go on with the memory itself.
func (l *lastTable) sameAs(maxFlows int64) bool { return l.own && l.maxFlows == maxFlows }

func (l *lastTable) read(page []byte, size int64) (mismatch string, cause statefile.Cause) {
	if !IsTable(page) || len(page) < headerSize {
		return "not a flow table", statefile.Damaged
	}
	l.version = foreignVersion(page)
	s, err := schema.Read(page, size)
	if n := ownFlows(page, size); n != 0 {
		own := ownSchema(n)
		if l.own = err != nil || sameText(s, own); l.own {
			s, err = own, nil
		}
	} else if l.version == layoutVersion && err != nil {
		return "header is damaged", statefile.Damaged
	}
	if err == schema.ErrNone && l.version == 5 {
		s, err = schema5(page, size)
	}
	if err == nil {
		l.reader, err = newReader(s, ownSchema(1))
	}
	if err != nil {
		return fmt.Sprintf("layout version %d, this is %d: %v", l.version, layoutVersion, err), statefile.Layout
	}
	switch head := l.reader.header(page); {
	case head.Sum != crc32.ChecksumIEEE(page[:l.reader.sumAt]) || head.Shape.Size != uint64(size) ||
		head.Shape.MaxFlows != uint64(l.reader.conns.Count):
		l.reader = nil
		return "header is damaged", statefile.Damaged
	case head.Shape.BootID != bootID():
		l.reader = nil
		return "made before the last boot", statefile.Reboot
	}
	l.maxFlows = l.reader.conns.Count
	return "", ""
}

// ownFlows is the number of connections of a table of size bytes in the layout of this process,
// 0 if it is in another or its header is damaged.
func ownFlows(page []byte, size int64) int64 {
	var h header
	copy(unsafe.Slice((*byte)(unsafe.Pointer(&h)), unsafe.Sizeof(h)), page)
	s := &h.Shape
	switch {
	case s.Version != layoutVersion || h.Sum != s.sum() || s.Size != uint64(size):
	case s.ConnSize != uint32(connSize) || s.EntrySize != uint32(entrySize) || s.Cursors != cursorCount:
	case s.MaxFlows == 0 || s.MaxFlows > mostFlows || s.Size != uint64(planFor(int64(s.MaxFlows)).size):
	default:
		return int64(s.MaxFlows)
	}
	return 0
}
