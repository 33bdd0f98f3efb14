package conntrack

import (
	"errors"
	"fmt"

	"github.com/weirlb/weir/conntrack/memory"
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
func (o *opener) openWithMemory(inFile *lastTable) error {
	if inFile != nil && inFile.mismatch != "" {
		if err := o.setAside(o.cfg.Path, inFile.cause, inFile.mismatch); err != nil {
			return err
		}
		inFile = nil
	}
	last, was := o.cfg.Memory.Last(), inFile
	if last != nil {
		defer func(last []byte) {
			o.restored.Moved = len(o.mem.shared) == 0 || &o.mem.shared[0] != &last[0]
		}(last)
		if inMemory := examineMemory(last); inMemory.mismatch == "" {
			was = inMemory
		} else {
			statefile.Count(statefile.FlowTable, inMemory.cause)
			o.restored.MemoryReason = inMemory.mismatch
			last = nil
		}
	}
	restored := o.restored
	err := o.openMemory(last, was)
	if err == nil {
		if was != nil {
			err = (&restorer{o.Table}).restore()
		}
		return errors.Join(err, o.emptyFile())
	}
	err = errors.Join(err, o.mem.Unmap())
	o.mem, o.nextHops = &mapping{file: o.mem.file, fileSize: o.mem.fileSize}, 0
	o.restored = restored
	o.restored.MemoryErr = err
	if last != nil {
		return o.openFileAfterMemory(last, was)
	}
	return o.openFile(was)
}

// openMemory brings the connections of an earlier process into Config.Memory: from memory last
// or, if that is nil, from the file. was describes them. They are to be restored. On an error
// nothing but the memory has changed.
func (o *opener) openMemory(last []byte, was *lastTable) error {
	o.nextHops = uint64(o.cfg.NextHops)
	maxFlows, err := chooseFlows(o.cfg, was)
	if err != nil {
		return err
	}
	if last != nil && was.sameAs(maxFlows) {
		if err := o.borrow(last, maxFlows); err != nil {
			return err
		}
		o.size()
		return nil
	}
	if err := o.borrow(nil, maxFlows); err != nil {
		return err
	}
	if err := o.fill(maxFlows, last, was); err != nil {
		return err
	}
	return o.cfg.Memory.Keep()
}

// openFileAfterMemory opens the table in the file, with the connections that an earlier
// process left in memory last, which was describes.
func (o *opener) openFileAfterMemory(last []byte, was *lastTable) error {
	maxFlows, err := chooseFlows(o.cfg, was)
	if err != nil {
		return err
	}
	if err := o.emptyFile(); err != nil {
		return err
	}
	if err := o.mapMemory(maxFlows, true); err != nil {
		return err
	}
	if err := o.fill(maxFlows, last, was); err != nil {
		return err
	}
	o.restored.MemoryErr = errors.Join(o.restored.MemoryErr, o.cfg.Memory.Drop())
	return (&restorer{o.Table}).restore()
}

// borrow takes the memory of the table from Config.Memory, that of the connections from last
// unless it is nil.
func (o *opener) borrow(last []byte, maxFlows int64) (err error) {
	p, m := planFor(maxFlows), o.cfg.Memory
	need := p.index() + maxFlows*linkSize + o.cfg.recordMemory(maxFlows)
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
	if o.mem.links, err = o.mem.MapPrivate(maxFlows * linkSize); err != nil {
		return err
	}
	o.mem.borrowed, o.mem.shared, o.mem.index = true, last[:p.size], index
	o.viewFile(o.mem.shared, p, maxFlows)
	o.viewPrivate(p)
	return nil
}

// fill initializes a new table, and copies the connections of an earlier one, was, nil for none:
// in memory last or, if that is nil, in the file.
func (o *opener) fill(maxFlows int64, last []byte, was *lastTable) (err error) {
	o.size()
	if err := o.initialize(maxFlows); err != nil || was == nil {
		return err
	}
	from := &mapping{}
	defer func() { _ = from.close() }()
	if last == nil {
		if last, err = from.Map(int(o.mem.file.Fd()), o.mem.fileSize); err != nil {
			return err
		}
	}
	(&copier{o.Table, last, was.reader}).copy()
	o.restored.note(was, maxFlows)
	return nil
}

// emptyFile empties the file: with the table in Config.Memory it is the lock alone.
func (o *opener) emptyFile() error {
	if o.mem.fileSize == 0 {
		return nil
	}
	o.mem.fileSize = 0
	return o.mem.file.Truncate(0)
}

// examineMemory is examine of a table in memory.
func examineMemory(b []byte) *lastTable {
	return examine(b[:min(len(b), headerSize)], int64(len(b)))
}

// checkAvailable checks that there is room for memory that is about to be allocated: a
// control group would otherwise kill the process.
func checkAvailable(maxFlows, need int64) error {
	if avail, err := (memory.Machine{Root: "/"}).Available(); err == nil && need > avail {
		return fmt.Errorf("%d flows need %d MB of memory, %d MB are available", maxFlows, need>>20, avail>>20)
	}
	return nil
}

// CheckMemory is an error if this machine, or the control group of this process, has less memory than a table
// of so many connections needs, recorded or not; 0 is automatic, and always fits. Unlike Open it does not ask how
// much is free.
func CheckMemory(maxFlows int64, recorded bool) error {
	if maxFlows <= 0 {
		return nil
	}
	maxFlows = min(maxFlows, mostFlows-1)
	p := planFor(maxFlows)
	need := p.size + p.index() + maxFlows*linkSize
	if recorded {
		need += maxFlows * recordBytes
	}
	if total, err := (memory.Machine{Root: "/"}).Total(); err == nil && need > total {
		return fmt.Errorf("%d flows need %d MB of memory, the machine has %d MB", maxFlows, need>>20, total>>20)
	}
	return nil
}
