// Package privilege takes from a started process all that it does not need: capabilities,
// system calls, and the right to write files elsewhere. It binds every thread, and everything
// that the process may start (credential plugins of a kubeconfig).
package privilege

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	"kernel.org/pub/linux/libs/security/libcap/psx"
)

// Status is what a process has left.
type Status struct {
	Capabilities []string `json:"capabilities"` // effective, such as CAP_NET_ADMIN
	NoNewPrivs   bool     `json:"noNewPrivs"`
	// Seccomp and Landlock are "" where they are in force, else why not.
	Seccomp  string `json:"seccomp,omitempty"`
	Landlock string `json:"landlock,omitempty"`
}

// names of the capabilities that a running Weir uses: it attaches programs again when an
// interface comes back, so that it needs them for good.
var names = map[int]string{
	unix.CAP_NET_ADMIN: "CAP_NET_ADMIN",
	unix.CAP_NET_RAW:   "CAP_NET_RAW",
	unix.CAP_BPF:       "CAP_BPF",
	unix.CAP_PERFMON:   "CAP_PERFMON",
	unix.CAP_IPC_LOCK:  "CAP_IPC_LOCK",
	unix.CAP_SYS_ADMIN: "CAP_SYS_ADMIN",
}

// used are the capabilities to keep. A kernel before 5.8 has CAP_SYS_ADMIN in place of
// CAP_BPF and CAP_PERFMON; so may a process of a later one.
func used(have uint64) uint64 {
	var keep uint64
	for c := range names {
		if c != unix.CAP_SYS_ADMIN {
			keep |= 1 << c
		}
	}
	const bpf = 1<<unix.CAP_BPF | 1<<unix.CAP_PERFMON
	if have&bpf != bpf {
		keep |= 1 << unix.CAP_SYS_ADMIN
	}
	return have & keep
}

// Drop leaves the process the capabilities of names, without a way to others: no_new_privs is
// set, and the bounding and the ambient set are cut. Then it installs the system call filter,
// and limits writing to the given directories, nil for no limit. Each is done for itself, so
// that a sandbox which forbids the process one of them leaves the others. An error is about
// capabilities that could not be given up; the status is always valid.
func Drop(writable []string) (*Status, error) {
	s := &Status{Capabilities: []string{}}
	have, err := effective()
	if err == nil {
		err = cut(have, used(have))
	}
	if now, e := effective(); e == nil {
		s.Capabilities = describe(now)
	}
	set, e := unix.PrctlRetInt(unix.PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0)
	s.NoNewPrivs = e == nil && set == 1
	if err := filterCalls(); err != nil {
		s.Seccomp = err.Error()
	}
	if writable == nil {
		s.Landlock = "a kubeconfig may start programs, which write where they like"
	} else if err := limitWriting(writable); err != nil {
		s.Landlock = err.Error()
	}
	return s, err
}

// describe names the capabilities of a set, those without a name here by their numbers.
func describe(set uint64) []string {
	out := []string{}
	for c := range 64 {
		if set>>c&1 != 0 {
			out = append(out, cmp.Or(names[c], fmt.Sprint("CAP_", c)))
		}
	}
	slices.Sort(out)
	return out
}

// cut takes all capabilities but those of keep from every thread, which has those of have.
func cut(have, keep uint64) error {
	if err := prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0); err != nil {
		return fmt.Errorf("no_new_privs: %w", err)
	}
	if err := prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0); err != nil && !errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("ambient set: %w", err)
	}
	for c := 0; ; c++ {
		in, err := unix.PrctlRetInt(unix.PR_CAPBSET_READ, uintptr(c), 0, 0, 0)
		if errors.Is(err, unix.EINVAL) {
			break // beyond the last
		}
		if err != nil {
			return fmt.Errorf("bounding set: %w", err)
		}
		if in == 0 || keep>>c&1 != 0 {
			continue
		}
		// Without CAP_SETPCAP the bounding set stays, and no_new_privs makes it worth nothing.
		if err := prctl(unix.PR_CAPBSET_DROP, uintptr(c), 0); err != nil && !errors.Is(err, unix.EPERM) {
			return fmt.Errorf("bounding set: %w", err)
		}
	}
	// A sandbox that gives the process no more than it needs may forbid this call.
	if err := setCapabilities(keep); err != nil && have != keep {
		return fmt.Errorf("give up capabilities: %w", err)
	}
	return nil
}

func prctl(option, arg2, arg3 uintptr) error {
	if _, _, errno := psx.Syscall6(unix.SYS_PRCTL, option, arg2, arg3, 0, 0, 0); errno != 0 {
		return errno
	}
	return nil
}

// effective are the capabilities in effect, those of the thread that runs this.
func effective() (uint64, error) {
	b, err := os.ReadFile("/proc/thread-self/status")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		if hex, ok := strings.CutPrefix(line, "CapEff:"); ok {
			return strconv.ParseUint(strings.TrimSpace(hex), 16, 64)
		}
	}
	return 0, errors.New("/proc/thread-self/status has no CapEff")
}

// existing is the nearest directory above path, or path, that is there.
func existing(path string) string {
	for {
		if _, err := os.Stat(path); err == nil || path == filepath.Dir(path) {
			return path
		}
		path = filepath.Dir(path)
	}
}
