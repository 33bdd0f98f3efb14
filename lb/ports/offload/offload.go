// Package offload switches settings of NICs off that would change packets before the steering program
// sees them, and puts them back.
package offload

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/conntrack/statefile"
	"github.com/weirlb/weir/lb/steer"
)

// Record is the settings of NICs that were switched off, to be put back: by
// interface and feature, the old values. They are noted in a file before they
// are changed, so that a crash does not lose them.
type Record struct {
	path string
	Old  map[string]map[string]bool `json:"old"`
}

// Open returns what an earlier process has noted in stateDir, with an error if that is not usable.
func Open(stateDir string) (*Record, error) {
	o := &Record{path: filepath.Join(stateDir, "offloads.json"), Old: map[string]map[string]bool{}}
	b, err := statefile.Read(o.path, maxOffloads)
	if errors.Is(err, fs.ErrNotExist) {
		return o, nil
	}
	unusable := errors.Is(err, statefile.ErrUntrusted) && !errors.Is(err, statefile.ErrDirectory)
	if err == nil {
		err = json.Unmarshal(b, o)
		unusable = err != nil
	}
	if err == nil {
		return o, nil
	}
	o.Old = map[string]map[string]bool{}
	if unusable { // and not where it cannot be read now
		err = errors.Join(err, statefile.SetAside(statefile.Offloads, statefile.CauseOf(err), o.path, o.path+".bad"))
	}
	return o, fmt.Errorf("offloads that an earlier process switched off stay off: %w", err)
}

// maxOffloads is the greatest size of the file in bytes.
const maxOffloads = 1 << 20

// Disable switches off what would change packets before the steering program
// sees them (see steer.Offloads).
func (o *Record) Disable(name string, hook steer.Hook, mode steer.Mode) ([]string, error) {
	conflicts, err := steer.OffloadConflicts(name, hook, mode)
	if err != nil || len(conflicts) == 0 {
		return nil, err
	}
	old := maps.Clone(o.Old[name])
	if old == nil {
		old = map[string]bool{}
	}
	var off []string
	for _, c := range conflicts {
		if c.Fixed {
			return nil, fmt.Errorf("offload %s is on and the driver does not let it be switched off: it %s",
				c.Ethtool, c.Why)
		}
		old[c.Feature] = true
		off = append(off, c.Ethtool)
	}
	o.Old[name] = old
	if err := o.write(); err != nil {
		return nil, err
	}
	if _, err := steer.DisableOffloads(name, conflicts); err != nil {
		return nil, fmt.Errorf("%w; try `%s`", err, conflicts[0].Command(name))
	}
	return off, nil
}

func (o *Record) write() error {
	b, err := json.Marshal(o)
	if err == nil {
		if err = os.MkdirAll(filepath.Dir(o.path), 0o755); err == nil {
			err = statefile.Replace(o.path, b)
		}
	}
	if err != nil {
		return fmt.Errorf("note offloads before switching them off: %w", err)
	}
	return nil
}

// Restore puts all settings back. A setting that could not be put back stays noted.
func (o *Record) Restore() error { return o.RestoreOthers(func(string) bool { return false }) }

// RestoreOthers is Restore but for the interfaces whose names are kept.
func (o *Record) RestoreOthers(kept func(name string) bool) error {
	var errs []error
	for name := range o.Old {
		if kept(name) {
			continue
		}
		if err := o.restoreAs(name, name); err != nil {
			errs = append(errs, fmt.Errorf("offloads of %s: %w", name, err))
		}
	}
	return errors.Join(errs...)
}

// restoreAs puts back the settings of an interface that has the name now, and name when it was noted.
func (o *Record) restoreAs(name, now string) error {
	old, ok := o.Old[name]
	if !ok {
		return nil
	}
	if err := steer.RestoreOffloads(now, old); err != nil && !errors.Is(err, unix.ENODEV) {
		return err
	}
	return o.Forget(name)
}

// RestoreLink puts back the settings of one interface, by index: it may have been renamed, and
// another may have the name.
func (o *Record) RestoreLink(name string, index int) error {
	d, err := netlink.LinkByIndex(index)
	switch {
	case errors.As(err, new(netlink.LinkNotFoundError)):
		return o.Forget(name)
	case err != nil:
		return fmt.Errorf("offloads of %s: %w", name, err)
	}
	return o.restoreAs(name, d.Attrs().Name)
}

// Forget drops the note of an interface that no longer exists.
func (o *Record) Forget(name string) error {
	if _, ok := o.Old[name]; !ok {
		return nil
	}
	delete(o.Old, name)
	if len(o.Old) > 0 {
		return o.write()
	}
	if err := os.Remove(o.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
