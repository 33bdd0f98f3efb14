package conntrack

import (
	"fmt"
	"os"

	"github.com/weirlb/weir/conntrack/statefile"
)

// Prepared is memory for the table of a process that serves, which the next process is to go on
// with. All of it is mapped and touched.
type Prepared struct {
	maxFlows int64
	mem      *mapping // with the file, but for a Config.Memory
}

// Prepare maps the table of a process that serves, and makes the memory that Open needs
// beside it: index and links. Nobody reads the table before Open has the lock, and nothing in
// it changes. The result is nil where Open has to copy the connections, or has none. Of cfg
// it needs Path, MaxFlows and Memory.
func Prepare(cfg Config) (p *Prepared, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("flow table %s: %w", cfg.Path, err)
		}
	}()
	switch {
	case cfg.Memory != nil:
		last := cfg.Memory.Last()
		if last == nil {
			return nil, nil
		}
		return prepare(cfg, examineMemory(last), nil)
	case cfg.Path == "":
		return nil, nil
	}
	f, err := statefile.Open(cfg.Path, os.O_RDWR)
	if err != nil {
		return nil, err
	}
	var last *lastTable
	st, err := f.Stat()
	if err == nil {
		page := make([]byte, headerSize)
		n, _ := f.ReadAt(page, 0) // what is not there is no header
		last = examine(page[:n], st.Size())
		p, err = prepare(cfg, last, f)
	}
	if p == nil {
		_ = f.Close()
	}
	return p, err
}

// prepare is Prepare of a table as it was last, in the file unless f is nil. Without a result the
// file stays open.
func prepare(cfg Config, last *lastTable, f *os.File) (*Prepared, error) {
	if !last.restorable() {
		return nil, nil
	}
	maxFlows, err := chooseFlows(cfg, last)
	if err != nil || !last.sameAs(maxFlows) {
		return nil, err
	}
	plan := planFor(maxFlows)
	if err := checkAvailable(maxFlows, plan.index()+maxFlows*linkSize); err != nil {
		return nil, err
	}
	m := &mapping{}
	if m.links, err = m.mapPrivate(maxFlows * linkSize); err == nil && f != nil {
		if m.index, err = m.mapPrivate(plan.index()); err == nil {
			m.shared, err = m.mapAligned(int(f.Fd()), plan.size)
		}
		if err == nil {
			err = populate(m.shared)
		}
	}
	if err != nil {
		_ = m.unmap()
		return nil, err
	}
	m.file = f
	return &Prepared{maxFlows, m}, nil
}

// giveFile gives m, which has the locked file, the memory of a table of maxFlows, and reports
// whether it has that.
func (p *Prepared) giveFile(m *mapping, maxFlows int64) bool {
	if p == nil || p.mem == nil || p.mem.file == nil || m.file == nil || p.maxFlows != maxFlows {
		return false
	}
	mine, err := p.mem.file.Stat()
	if err != nil {
		return false
	}
	locked, err := m.file.Stat()
	if err != nil || !os.SameFile(mine, locked) || locked.Size() != planFor(maxFlows).size {
		return false
	}
	m.areas = append(m.areas, p.mem.areas...)
	m.shared, m.index, m.links, m.fileSize = p.mem.shared, p.mem.index, p.mem.links, locked.Size()
	p.mem.areas = nil
	return true
}

// giveLinks gives m the links of a table of maxFlows in Config.Memory, and reports whether it has
// them.
func (p *Prepared) giveLinks(m *mapping, maxFlows int64) bool {
	if p == nil || p.mem == nil || p.mem.file != nil || p.maxFlows != maxFlows {
		return false
	}
	m.areas = append(m.areas, p.mem.areas...)
	m.links = p.mem.links
	p.mem.areas = nil
	return true
}

// Close frees what Open has not taken.
func (p *Prepared) Close() error {
	if p == nil || p.mem == nil {
		return nil
	}
	m := p.mem
	p.mem = nil
	return m.close()
}
