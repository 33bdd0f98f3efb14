package privilege

import (
	"fmt"
	"unsafe"

	seccomp "github.com/elastic/go-seccomp-bpf"
	ll "github.com/landlock-lsm/go-landlock/landlock/syscall"
	"golang.org/x/sys/unix"
)

// Available says why the kernel cannot confine a process, by the name of the means, nil where it
// can.
func Available() map[string]error {
	out := map[string]error{"seccomp": nil, "Landlock": nil}
	if err := filters(); err != nil {
		out["seccomp"] = err
	}
	if _, err := ll.LandlockGetABIVersion(); err != nil {
		out["Landlock"] = fmt.Errorf("not to be had: %w", err)
	}
	return out
}

// filters is nil if a filter of system calls can be installed. seccomp.Supported says no more
// than that, and a sandbox may forbid the call.
func filters() error {
	action := uint32(seccomp.ActionErrno)
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, getActionAvail, 0, uintptr(unsafe.Pointer(&action)))
	if errno != 0 {
		return fmt.Errorf("filters are not to be had: %w", errno)
	}
	return nil
}

// getActionAvail is SECCOMP_GET_ACTION_AVAIL (Linux 4.14).
const getActionAvail = 2
