package privilege

import (
	"errors"
	"fmt"

	"github.com/landlock-lsm/go-landlock/landlock"
	ll "github.com/landlock-lsm/go-landlock/landlock/syscall"
	"golang.org/x/sys/unix"
)

// writing are the rights that are limited to the writable directories. Reading is not: a
// manifest may link to anywhere.
const writing = landlock.AccessFSSet(ll.AccessFSWriteFile | ll.AccessFSRemoveDir | ll.AccessFSRemoveFile |
	ll.AccessFSMakeChar | ll.AccessFSMakeDir | ll.AccessFSMakeReg | ll.AccessFSMakeSock | ll.AccessFSMakeFifo |
	ll.AccessFSMakeBlock | ll.AccessFSMakeSym | ll.AccessFSTruncate)

// held are open for good. A rule goes by the inode, and that of a directory of procfs is made
// anew when nobody holds it.
var held []int

// limitWriting limits writing, in every thread, to the given directories and all below. In
// place of a directory that is not there yet it is the nearest above.
func limitWriting(dirs []string) error {
	abi, err := ll.LandlockGetABIVersion()
	if err != nil {
		return fmt.Errorf("not to be had: %w", err)
	}
	set := writing
	if abi < 3 {
		set &^= ll.AccessFSTruncate
	}
	var rules []landlock.Rule
	for _, dir := range dirs {
		dir = existing(dir)
		if dir == "/" {
			return errors.New("a directory to write to is not there")
		}
		fd, err := unix.Open(dir, unix.O_PATH|unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("open %s: %w", dir, err)
		}
		held = append(held, fd)
		rules = append(rules, landlock.PathAccess(set, dir))
	}
	// A rule for a file may have those rights only that make sense for files.
	rules = append(rules, landlock.PathAccess(set&(ll.AccessFSWriteFile|ll.AccessFSTruncate), "/dev/null").IgnoreIfMissing())
	return landlock.MustConfig(set).RestrictPaths(rules...)
}
