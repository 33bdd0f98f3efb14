package conntrack

import (
	"fmt"

	"github.com/weirlb/weir/conntrack/statefile"
)

// setAsideKeep is how much of a file that is set aside is kept to be looked at:
// the rest would take memory for nothing.
const setAsideKeep = 64 << 10

// mismatch returns the reason why a file of shape s cannot be restored, "" if it can.
func (s *shape) mismatch() string {
	switch {
	case s.Magic != magic:
		return "not a flow table"
	case s.Version == 0:
		return "header is damaged"
	case s.Version != layoutVersion || s.ConnSize != uint32(connSize) || s.EntrySize != uint32(entrySize) || s.Cursors != cursorCount:
		return fmt.Sprintf("layout version %d, this is %d", s.Version, layoutVersion)
	case s.MaxFlows == 0 || s.MaxFlows > mostFlows || s.Size != uint64(planFor(int64(s.MaxFlows)).size):
		return "header is damaged"
	case s.BootID != bootID():
		return "made before the last boot"
	}
	return ""
}

// cause is the cause of a mismatch.
func (s *shape) cause() statefile.Cause {
	switch {
	case s.Magic != magic || s.Version == 0:
		return statefile.Damaged
	case s.Version != layoutVersion:
		return statefile.Layout
	case s.BootID != bootID():
		return statefile.Reboot
	}
	return statefile.Damaged
}

// setAside renames the file, keeps the first part, and begins a new file. A file that is not
// open is not trusted, and only renamed.
func (t *Table) setAside(path string, cause statefile.Cause, why string) error {
	bad := path + ".bad"
	if err := statefile.SetAside(statefile.FlowTable, cause, path, bad); err != nil {
		return fmt.Errorf("set aside (%s): %w", why, err)
	}
	if t.mem.file != nil && t.mem.fileSize > setAsideKeep {
		if err := t.mem.file.Truncate(setAsideKeep); err != nil {
			return fmt.Errorf("shorten %s: %w", bad, err)
		}
	}
	f, err := statefile.Create(path)
	if err != nil {
		return err
	}
	err = lock(f)
	if t.mem.file != nil {
		_ = t.mem.file.Close()
	}
	t.mem.file, t.mem.fileSize = f, 0
	t.restored.SetAside, t.restored.Reason = bad, why
	return err
}
