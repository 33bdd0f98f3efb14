package conntrack

import (
	"fmt"

	"github.com/weirlb/weir/conntrack/statefile"
)

// setAsideKeep is how much of a file that is set aside is kept to be looked at:
// the rest would take memory for nothing.
const setAsideKeep = 64 << 10

// setAside renames the file, keeps the first part, and begins a new file. A file that is not
// open is not trusted, and only renamed.
func (o *opener) setAside(path string, cause statefile.Cause, why string) error {
	bad := path + ".bad"
	if err := statefile.SetAside(statefile.FlowTable, cause, path, bad); err != nil {
		return fmt.Errorf("set aside (%s): %w", why, err)
	}
	if o.mem.file != nil && o.mem.fileSize > setAsideKeep {
		if err := o.mem.file.Truncate(setAsideKeep); err != nil {
			return fmt.Errorf("shorten %s: %w", bad, err)
		}
	}
	f, err := statefile.Create(path)
	if err != nil {
		return err
	}
	err = lock(f)
	if o.mem.file != nil {
		_ = o.mem.file.Close()
	}
	o.mem.file, o.mem.fileSize = f, 0
	o.restored.SetAside, o.restored.Reason = bad, why
	return err
}
