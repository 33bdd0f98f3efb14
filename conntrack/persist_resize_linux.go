package conntrack

import (
	"os"
	"sync/atomic"

	"github.com/weirlb/weir/conntrack/statefile"
)

// resize copies the connections of the mapped file, of another number of flows,
// into a new file that takes its place once it is whole. On an error everything is
// as before.
func (t *Table) resize(cfg Config, old *shape, maxFlows int64) (err error) {
	was := t.mem
	from := &Table{mem: &mapping{}}
	defer func() { _ = from.mem.close() }()
	p := planFor(int64(old.MaxFlows))
	b, err := from.mem.mapAligned(int(was.file.Fd()), p.size)
	if err != nil {
		return err
	}
	from.viewFile(b, p, int64(old.MaxFlows))

	name := cfg.Path + ".new"
	_ = os.Remove(name) // of a process that was killed, or of another user
	f, err := statefile.Create(name)
	if err != nil {
		return err
	}
	t.mem = &mapping{file: f}
	defer func() {
		if err != nil {
			_ = t.mem.close()
			_ = os.Remove(name)
			t.mem = was
		}
	}()
	if err := lock(f); err != nil {
		return err
	}
	if err := t.mapMemory(cfg, maxFlows, true); err != nil {
		return err
	}
	if err := t.initialize(maxFlows); err != nil {
		return err
	}
	t.copyFrom(from)
	if err := os.Rename(name, cfg.Path); err != nil {
		return err
	}
	t.restored.Resized = int(old.MaxFlows)
	_ = was.close()
	return nil
}

// copyFrom copies connections, clock and cursors. Connections without room are counted
// as discarded.
func (t *Table) copyFrom(from *Table) {
	t.head.Epoch = from.head.Epoch
	t.head.LastTick, t.head.LastWall = from.head.LastTick, from.head.LastWall
	t.head.Shape.Seed = from.head.Shape.Seed
	t.head.Sum = t.head.Shape.sum()
	for i := range from.cursors {
		t.cursors[i].at.Store(from.cursors[i].at.Load())
	}
	n := 0
	for i := range from.conns {
		if atomic.LoadUint32(&from.conns[i].state)&published == 0 {
			continue
		}
		if n == len(t.conns) {
			t.restored.Discarded++
			continue
		}
		t.entries[2*n], t.entries[2*n+1] = from.entries[2*i], from.entries[2*i+1]
		t.conns[n] = from.conns[i]
		n++
	}
}
