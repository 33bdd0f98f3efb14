package conntrack

import (
	"os"

	"github.com/weirlb/weir/conntrack/statefile"
)

// newSuffix is behind the name of a copy of the table that is not yet whole.
const newSuffix = ".new"

// renew copies the connections of the file, of another number of flows or another layout, into a
// new file that takes its place once it is whole. On an error everything is as before.
func (o *opener) renew(last *lastTable, maxFlows int64) (err error) {
	was, from := o.mem, &mapping{}
	defer func() { _ = from.close() }()
	b, err := from.Map(int(was.file.Fd()), was.fileSize)
	if err != nil {
		return err
	}

	name := o.cfg.Path + newSuffix
	f, err := statefile.Create(name)
	if err != nil {
		return err
	}
	o.mem = &mapping{file: f}
	defer func() {
		if err != nil {
			_ = o.mem.close()
			_ = os.Remove(name)
			o.mem = was
		}
	}()
	if err := lock(f); err != nil {
		return err
	}
	if err := o.mapMemory(maxFlows, true); err != nil {
		return err
	}
	if err := o.initialize(maxFlows); err != nil {
		return err
	}
	(&copier{o.Table, b, last.reader}).copy()
	if err := os.Rename(name, o.cfg.Path); err != nil {
		return err
	}
	o.restored.note(last, maxFlows)
	_ = was.close()
	return nil
}

// note notes from what table the connections were copied.
func (a *Restoration) note(last *lastTable, maxFlows int64) {
	if last.maxFlows != maxFlows {
		a.Resized = int(last.maxFlows)
	}
	if !last.own {
		a.Migrated = int(last.version)
	}
}
