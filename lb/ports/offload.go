package ports

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

// offloads are settings of NICs that were switched off, to be put back: by
// interface and feature, the old values. They are noted in a file before they
// are changed, so that a crash does not lose them.
type offloads struct {
	path string
	Old  map[string]map[string]bool `json:"old"`
}

func openOffloads(stateDir string) (*offloads, error) {
	o := &offloads{path: filepath.Join(stateDir, "offloads.json"), Old: map[string]map[string]bool{}}
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

// disable switches off what would change packets before the steering program
// sees them (see steer.Offloads).
func (o *offloads) disable(name string, hook steer.Hook, mode steer.Mode) ([]string, error) {
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

func (o *offloads) write() error {
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

// restore puts all settings back. A setting that could not be put back stays noted.
func (o *offloads) restore() error {
	var errs []error
	for name := range o.Old {
		errs = append(errs, o.restoreOf(name))
	}
	return errors.Join(errs...)
}

// restoreOf puts back the settings of one interface.
func (o *offloads) restoreOf(name string) error { return o.restoreAs(name, name) }

// restoreAs is restoreOf for an interface that has the name now, and name when it was noted.
func (o *offloads) restoreAs(name, now string) error {
	old, ok := o.Old[name]
	if !ok {
		return nil
	}
	if err := steer.RestoreOffloads(now, old); err != nil && !errors.Is(err, unix.ENODEV) {
		return err
	}
	return o.forget(name)
}

// restoreOffloads puts back the settings of a device, which may have been renamed: another may
// have the name.
func (ps *Ports) restoreOffloads(p *port) error {
	d, err := netlink.LinkByIndex(p.index)
	switch {
	case errors.As(err, new(netlink.LinkNotFoundError)):
		return ps.offloads.forget(p.name)
	case err != nil:
		return fmt.Errorf("offloads of %s: %w", p.name, err)
	}
	return ps.offloads.restoreAs(p.name, d.Attrs().Name)
}

// forget drops the note of an interface that no longer exists.
func (o *offloads) forget(name string) error {
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
