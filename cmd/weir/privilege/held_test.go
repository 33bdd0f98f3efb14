package privilege

import (
	"testing"

	"golang.org/x/sys/unix"
)

// Landlock binds the program that is executed next, by directories that this process holds: one of
// procfs is another when nobody has held it.
func TestDirectoriesAreHeldThroughExec(t *testing.T) {
	fd, err := unix.Open("/proc/sys/net", unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	held = append(held, fd)
	defer func() { held = nil }()
	if err := KeepThroughExec(); err != nil {
		t.Fatal(err)
	}
	if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil || flags != 0 {
		t.Errorf("flags %#x, %v: it is closed at the execution", flags, err)
	}
}
