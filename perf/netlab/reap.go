package netlab

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
)

// namePrefix begins everything that a lab puts into the host.
const namePrefix = "weir-lab-"

var labCount atomic.Uint32

// owner identifies the process that made a lab: a process id means something only inside a
// PID namespace, and only together with the start time, as
// ids are used again.
type owner struct {
	pidNamespace string // inode number
	pid          int
	start        uint64 // clock ticks after boot
}

// newName is unique on this machine and tells the lab's owner.
func newName() (string, error) {
	self, err := processOwner(os.Getpid())
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%s%s-%d-%d-%d", namePrefix, self.pidNamespace, self.pid, self.start, labCount.Add(1)), nil
}

// parseOwner reads the owner out of a name made from newName's.
func parseOwner(name string) (owner, bool) {
	rest, ok := strings.CutPrefix(name, namePrefix)
	if !ok {
		return owner{}, false
	}
	f := strings.SplitN(rest, "-", 4)
	if len(f) < 4 {
		return owner{}, false
	}
	pid, err1 := strconv.Atoi(f[1])
	start, err2 := strconv.ParseUint(f[2], 10, 64)
	if err1 != nil || err2 != nil {
		return owner{}, false
	}
	return owner{pidNamespace: f[0], pid: pid, start: start}, true
}

// processOwner looks a running process up.
func processOwner(pid int) (owner, error) {
	link, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		return owner{}, err
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return owner{}, err
	}
	// Field 2, the command, is in brackets and may itself hold blanks and
	// brackets; start time is field 22 (proc_pid_stat(5)).
	_, after, ok := strings.Cut(string(stat[strings.LastIndexByte(string(stat), ')'):]), ") ")
	fields := strings.Fields(after)
	if !ok || len(fields) < 20 {
		return owner{}, fmt.Errorf("/proc/%d/stat: unexpected format", pid)
	}
	start, err := strconv.ParseUint(fields[19], 10, 64)
	if err != nil {
		return owner{}, fmt.Errorf("/proc/%d/stat: start time: %w", pid, err)
	}
	inode := strings.TrimSuffix(strings.TrimPrefix(link, "pid:["), "]")
	return owner{pidNamespace: inode, pid: pid, start: start}, nil
}

// gone reports whether the owner's process has certainly ended. Owners of
// other PID namespaces cannot be judged from here and count as alive.
func (o owner) gone() bool {
	self, err := processOwner(os.Getpid())
	if err != nil || self.pidNamespace != o.pidNamespace {
		return false
	}
	p, err := processOwner(o.pid)
	if errors.Is(err, fs.ErrNotExist) {
		return true
	}
	return err == nil && p.start != o.start
}

// Reap removes the files and /run/netns links of labs whose process is gone.
// The namespaces themselves have gone with the process.
func Reap() error {
	var errs []error
	for _, dir := range []string{os.TempDir(), netnsDir} {
		entries, err := os.ReadDir(dir)
		if err != nil {
			continue // no such directory: nothing was left there
		}
		for _, e := range entries {
			if o, ok := parseOwner(e.Name()); ok && o.gone() {
				errs = append(errs, os.RemoveAll(filepath.Join(dir, e.Name())))
			}
		}
	}
	return errors.Join(errs...)
}
