package conntrack

import (
	"bytes"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// Save copies a table that is in Config.Memory into the file, so that the memory may go. A table
// in the file is there already. No worker changes the table meanwhile.
//
// The file has no blocks for pages without connections: it is as large as the connections are many.
func Save(t *Table) error {
	if !t.mem.borrowed || t.mem.file == nil {
		return nil
	}
	t.head.note(t.Tick(), time.Now())
	if err := t.mem.save(); err != nil {
		return fmt.Errorf("flow table %s: save the connections: %w", t.mem.file.Name(), err)
	}
	return nil
}

// save writes the table into the file. The header is last: without it the file is no table.
func (m *mapping) save() (err error) {
	defer func() {
		if err != nil {
			_ = m.file.Truncate(0)
		}
	}()
	if err := m.file.Truncate(0); err != nil {
		return err
	}
	if err := m.file.Truncate(int64(len(m.shared))); err != nil {
		return err
	}
	m.fileSize = int64(len(m.shared))
	for from := headerSize; from < len(m.shared); from += saveStep {
		page := m.shared[from:min(from+saveStep, len(m.shared))]
		if bytes.Equal(page, zeros[:len(page)]) {
			continue
		}
		if _, err := m.file.WriteAt(page, int64(from)); err != nil {
			return err
		}
	}
	_, err = m.file.WriteAt(m.shared[:headerSize], 0)
	return err
}

// saveStep is how much is in the file as a whole, or not: a huge page has many blocks.
const saveStep = 64 << 10

var zeros [saveStep]byte

// holes is how much of the file has no blocks yet.
func (m *mapping) holes() int64 {
	var st unix.Stat_t
	if m.file == nil || unix.Fstat(int(m.file.Fd()), &st) != nil {
		return 0
	}
	return max(0, st.Size-st.Blocks*512)
}
