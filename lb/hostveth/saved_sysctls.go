package hostveth

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/conntrack/statefile"
)

// savedSysctls holds the old values of changed sysctls, in a file, so that they can be
// restored even after a crash. An existing entry is kept: the value read since then is
// Weir's own.
type savedSysctls struct {
	path    string
	netns   uint64
	sysctls sysctls
	Old     []savedSysctl `json:"old"`
}

// savedSysctl is a changed sysctl.
type savedSysctl struct {
	Key string `json:"key"`
	// Value is the old value, New the value that Weir set.
	Value string `json:"value"`
	New   string `json:"new"`
	// NetNS is the inode of the network namespace that it was changed in.
	NetNS uint64 `json:"netns"`
}

// openSavedSysctls reads the file of an earlier process. A file that cannot be read is set
// aside, with an error to be shown; the result is usable.
func openSavedSysctls(dir string, s sysctls) (j *savedSysctls, damaged, err error) {
	j = &savedSysctls{path: filepath.Join(dir, "sysctl.json"), sysctls: s}
	var st unix.Stat_t
	if err := unix.Stat("/proc/thread-self/ns/net", &st); err != nil {
		return nil, nil, fmt.Errorf("network namespace: %w", err)
	}
	j.netns = st.Ino
	b, err := statefile.Read(j.path, maxSavedSysctls)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return j, nil, nil
	case errors.Is(err, statefile.ErrDirectory):
		return nil, nil, fmt.Errorf("journal of changed settings: %w", err)
	case errors.Is(err, statefile.ErrUntrusted):
	case err != nil:
		return nil, nil, fmt.Errorf("journal of changed settings: %w", err)
	default:
		err = json.Unmarshal(b, j)
	}
	if err == nil {
		return j, nil, nil
	}
	j.Old = nil
	aside := j.path + ".bad"
	if err := statefile.SetAside(statefile.Sysctls, statefile.CauseOf(err), j.path, aside); err != nil {
		return nil, nil, fmt.Errorf("journal of changed settings: set aside: %w", err)
	}
	return j, fmt.Errorf("journal of changed settings is damaged (%w), its values are not put back: see %s", err, aside), nil
}

// maxSavedSysctls is the greatest size of the file in bytes.
const maxSavedSysctls = 16 << 20

// save adds an old value and brings the journal to the disk.
func (j *savedSysctls) save(key, old, now string) error {
	for i := range j.Old {
		if e := &j.Old[i]; e.Key == key && e.NetNS == j.netns {
			e.New = now
			return j.write()
		}
	}
	j.Old = append(j.Old, savedSysctl{key, old, now, j.netns})
	return j.write()
}

// write replaces the file. The machine may go down right after the change that
// it is written for, so it is on the disk first.
func (j *savedSysctls) write() error {
	err := func() error {
		b, err := json.MarshalIndent(j, "", "  ")
		if err != nil {
			return err
		}
		if err := os.MkdirAll(filepath.Dir(j.path), 0o755); err != nil {
			return err
		}
		return statefile.Replace(j.path, b)
	}()
	if err != nil {
		return fmt.Errorf("journal of changed settings: %w", err)
	}
	return nil
}

// restore puts the old values back, the last changed first, and leaves out values that
// another program has changed since. A deleted interface has no sysctls any more. Entries
// of a process in another network namespace stay.
func (j *savedSysctls) restore() error {
	if j == nil || len(j.Old) == 0 {
		return nil
	}
	var errs []error
	var keep []savedSysctl
	for _, e := range slices.Backward(j.Old) {
		if e.NetNS != j.netns {
			keep = append(keep, e)
			continue
		}
		now, err := j.sysctls.read(e.Key)
		if err == nil && (now == e.New || e.New == "") {
			err = j.sysctls.write(e.Key, e.Value)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
			keep = append(keep, e)
		}
	}
	slices.Reverse(keep)
	j.Old = keep
	if len(keep) > 0 {
		return errors.Join(append(errs, j.write())...)
	}
	if err := os.Remove(j.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
