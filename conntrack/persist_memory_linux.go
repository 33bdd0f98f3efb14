package conntrack

import (
	"errors"
	"fmt"

	"github.com/weirlb/weir/conntrack/statefile"
)

// Memory is the memory of a table that is not in a file: arrays that a program in the kernel
// reads too. That of an earlier process may go on reading, and forwarding packets, until this
// process has replaced it.
type Memory interface {
	// Last returns the memory of the table that an earlier process left, nil if there is
	// none.
	Last() []byte
	// Table returns size bytes for a new table, all zero, at a page's start.
	Table(size int64) ([]byte, error)
	// Index returns size bytes for the index of the table, all zero, at a page's start.
	Index(size int64) ([]byte, error)
	// Keep says that the memory of Table holds all connections: the next process is to have
	// it in place of the last.
	Keep() error
	// Drop says that all connections are in the file: the next process is not to have the
	// last memory.
	Drop() error
}

// openWithMemory opens the table in Config.Memory, else in the file, which has table inFile.
func (t *Table) openWithMemory(cfg Config, inFile *lastTable) error {
	if inFile != nil && inFile.mismatch != "" {
		if err := t.setAside(cfg.Path, inFile.cause, inFile.mismatch); err != nil {
			return err
		}
		inFile = nil
	}
	last, was := cfg.Memory.Last(), inFile
	if last != nil {
		defer func(last []byte) {
			t.restored.Moved = len(t.mem.shared) == 0 || &t.mem.shared[0] != &last[0]
		}(last)
		if inMemory := examineMemory(last); inMemory.mismatch == "" {
			was = inMemory
		} else {
			statefile.Count(statefile.FlowTable, inMemory.cause)
			t.restored.MemoryReason = inMemory.mismatch
			last = nil
		}
	}
	restored := t.restored
	err := t.openMemory(cfg, last, was)
	if err == nil {
		if was != nil {
			err = t.restore()
		}
		return errors.Join(err, t.emptyFile())
	}
	err = errors.Join(err, t.mem.unmap())
	t.mem, t.nextHops = &mapping{file: t.mem.file, fileSize: t.mem.fileSize}, 0
	t.restored = restored
	t.restored.MemoryErr = err
	if last != nil {
		return t.openFileAfterMemory(cfg, last, was)
	}
	return t.openFile(cfg, was)
}

// openMemory brings the connections of an earlier process into Config.Memory: from memory last
// or, if that is nil, from the file. was describes them. They are to be restored. On an error
// nothing but the memory has changed.
func (t *Table) openMemory(cfg Config, last []byte, was *lastTable) error {
	t.nextHops = uint64(cfg.NextHops)
	maxFlows, err := chooseFlows(cfg, was)
	if err != nil {
		return err
	}
	if last != nil && was.sameAs(maxFlows) {
		if err := t.borrow(cfg, last, maxFlows); err != nil {
			return err
		}
		t.size(cfg.Workers)
		return nil
	}
	if err := t.borrow(cfg, nil, maxFlows); err != nil {
		return err
	}
	if err := t.fill(cfg, maxFlows, last, was); err != nil {
		return err
	}
	return cfg.Memory.Keep()
}

// openFileAfterMemory opens the table in the file, with the connections that an earlier
// process left in memory last, which was describes.
func (t *Table) openFileAfterMemory(cfg Config, last []byte, was *lastTable) error {
	maxFlows, err := chooseFlows(cfg, was)
	if err != nil {
		return err
	}
	if err := t.emptyFile(); err != nil {
		return err
	}
	if err := t.mapMemory(cfg, maxFlows, true); err != nil {
		return err
	}
	if err := t.fill(cfg, maxFlows, last, was); err != nil {
		return err
	}
	t.restored.MemoryErr = errors.Join(t.restored.MemoryErr, cfg.Memory.Drop())
	return t.restore()
}

// borrow takes the memory of the table from Config.Memory, that of the connections from last
// unless it is nil.
func (t *Table) borrow(cfg Config, last []byte, maxFlows int64) (err error) {
	p, m := planFor(maxFlows), cfg.Memory
	need := p.index() + maxFlows*linkSize
	if last == nil {
		need += p.size
	}
	if err := checkAvailable(maxFlows, need); err != nil {
		return err
	}
	if last == nil {
		if last, err = m.Table(p.size); err != nil {
			return err
		}
	}
	index, err := m.Index(p.index())
	if err != nil {
		return err
	}
	if t.mem.links, err = t.mem.mapPrivate(maxFlows * linkSize); err != nil {
		return err
	}
	t.mem.borrowed, t.mem.shared, t.mem.index = true, last[:p.size], index
	t.viewFile(t.mem.shared, p, maxFlows)
	t.viewPrivate(p)
	return nil
}

// fill initializes a new table, and copies the connections of an earlier one, was, nil for none:
// in memory last or, if that is nil, in the file.
func (t *Table) fill(cfg Config, maxFlows int64, last []byte, was *lastTable) (err error) {
	t.size(cfg.Workers)
	if err := t.initialize(maxFlows); err != nil || was == nil {
		return err
	}
	from := &mapping{}
	defer func() { _ = from.close() }()
	if last == nil {
		if last, err = from.mapAligned(int(t.mem.file.Fd()), t.mem.fileSize); err != nil {
			return err
		}
	}
	t.copyFrom(last, was)
	t.restored.note(was, maxFlows)
	return nil
}

// emptyFile empties the file: with the table in Config.Memory it is the lock alone.
func (t *Table) emptyFile() error {
	if t.mem.fileSize == 0 {
		return nil
	}
	t.mem.fileSize = 0
	return t.mem.file.Truncate(0)
}

// examineMemory is examine of a table in memory.
func examineMemory(b []byte) *lastTable {
	return examine(b[:min(len(b), headerSize)], int64(len(b)))
}

// checkAvailable checks that there is room for memory that is about to be allocated: a
// control group would otherwise kill the process.
func checkAvailable(maxFlows, need int64) error {
	if avail, err := (memory{"/"}).available(); err == nil && need > avail {
		return fmt.Errorf("%d flows need %d MB of memory, %d MB are available", maxFlows, need>>20, avail>>20)
	}
	return nil
}
