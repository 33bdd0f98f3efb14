package privilege

import (
	"fmt"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
	"kernel.org/pub/linux/libs/security/libcap/psx"
)

// setCapabilities makes keep the effective and the permitted set of every thread, and empties
// the inheritable one.
func setCapabilities(keep uint64) error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	data := [2]unix.CapUserData{
		{Effective: uint32(keep), Permitted: uint32(keep)},
		{Effective: uint32(keep >> 32), Permitted: uint32(keep >> 32)},
	}
	_, _, errno := psx.Syscall3(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&header)), uintptr(unsafe.Pointer(&data[0])), 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// KeepThroughExec leaves the program that the calling goroutine executes next the capabilities of this
// process. Those of root pass by themselves, those of others by the ambient set, which Drop
// has cleared. The directories that may be written to are held for that program too.
func KeepThroughExec() error {
	for _, fd := range held {
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETFD, 0); err != nil {
			return fmt.Errorf("hold a directory: %w", err)
		}
	}
	if os.Geteuid() == 0 {
		return nil
	}
	runtime.LockOSThread() // for good: execve takes the credentials of the thread
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return fmt.Errorf("capget: %w", err)
	}
	for i := range data {
		data[i].Inheritable = data[i].Permitted
	}
	if err := unix.Capset(&header, &data[0]); err != nil {
		return fmt.Errorf("capset: %w", err)
	}
	for c := range names {
		if data[c/32].Permitted>>(c%32)&1 == 0 {
			continue
		}
		if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_RAISE, uintptr(c), 0, 0); err != nil {
			return fmt.Errorf("ambient set: %s: %w", names[c], err)
		}
	}
	return nil
}
