// Package statefile opens and replaces the files that a start trusts: the flow table, the last
// known state, notes on changed settings. A file of another user could bring packets to
// addresses of that user, or write sysctls with the rights of Weir.
//
// A file is trusted if it is a regular file of root or of the user of the process, without write
// permission for anybody else. So must be the directory, where a sticky directory (/tmp,
// /dev/shm) may be writable. The last part of a path is no symbolic link. Directories above may
// be links (/var/run), and are not checked.
package statefile

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// ErrUntrusted is the error of a file or directory that another user could have written.
var ErrUntrusted = errors.New("not trusted")

// ErrDirectory is ErrUntrusted of the directory: a new file in it would not be trusted either.
var ErrDirectory = fmt.Errorf("directory is %w", ErrUntrusted)

// Open opens a file, for reading, or with O_RDWR for both. With O_CREATE it creates a missing
// file, mode 0600. The error is ErrUntrusted, ErrDirectory or that of the system call.
func Open(path string, flag int) (*os.File, error) {
	if err := Directory(filepath.Dir(path)); err != nil {
		return nil, err
	}
	for {
		// O_NONBLOCK: a FIFO must not hold up the start. O_CREAT on a file of another user in
		// a sticky directory is EACCES (fs.protected_regular), which says less than the check.
		f, err := open(path, flag&^os.O_CREATE)
		if !errors.Is(err, fs.ErrNotExist) || flag&os.O_CREATE == 0 {
			return f, err
		}
		f, err = Create(path)
		if !errors.Is(err, fs.ErrExist) {
			return f, err
		}
	}
}

// Create creates a file, mode 0600. An existing file or link is an error.
func Create(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o600)
}

func open(path string, flag int) (*os.File, error) {
	fd, err := unix.Open(path, flag|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		var st unix.Stat_t
		if e := unix.Lstat(path, &st); e == nil {
			if e := check(path, &st, flag); e != nil {
				return nil, e
			}
		}
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	var st unix.Stat_t
	if err = unix.Fstat(fd, &st); err == nil {
		err = check(path, &st, flag)
	}
	if err == nil {
		err = unix.SetNonblock(fd, false)
	}
	if err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	return os.NewFile(uintptr(fd), path), nil
}

// check returns ErrUntrusted for a file that is not trusted. A directory is an error of its own:
// a wrong path in the configuration must not have it set aside.
func check(path string, st *unix.Stat_t, flag int) error {
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		return &fs.PathError{Op: "open", Path: path, Err: unix.EISDIR}
	}
	if why := distrust(st, flag); why != "" {
		return fmt.Errorf("%s is %w: %s", path, ErrUntrusted, why)
	}
	return nil
}

// distrust says why a file is not trusted, "" if it is.
func distrust(st *unix.Stat_t, flag int) string {
	switch {
	case st.Mode&unix.S_IFMT == unix.S_IFLNK:
		return "it is a symbolic link"
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		return "it is no regular file"
	case !owned(st):
		return owner(st)
	case st.Mode&0o022 != 0:
		return fmt.Sprintf("others may write it (mode %04o)", st.Mode&0o7777)
	case st.Nlink > 1 && flag&unix.O_ACCMODE != unix.O_RDONLY:
		return fmt.Sprintf("it has %d names, and what is written to it would change the others", st.Nlink)
	}
	return ""
}

func owned(st *unix.Stat_t) bool { return st.Uid == 0 || int(st.Uid) == os.Geteuid() }

func owner(st *unix.Stat_t) string {
	if os.Geteuid() == 0 {
		return fmt.Sprintf("it belongs to uid %d, not to root", st.Uid)
	}
	return fmt.Sprintf("it belongs to uid %d, neither to root nor to uid %d", st.Uid, os.Geteuid())
}

// Directory checks a directory; the error is ErrDirectory. A missing directory is trusted.
func Directory(dir string) error {
	var st unix.Stat_t
	err := unix.Stat(dir, &st)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return &fs.PathError{Op: "stat", Path: dir, Err: err}
	}
	// A group of the process's own may write: a umask of 002 makes such directories.
	others := st.Mode & 0o002
	if int(st.Gid) != os.Getegid() && st.Gid != 0 {
		others |= st.Mode & 0o020
	}
	why := ""
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFDIR:
		return &fs.PathError{Op: "open", Path: dir, Err: unix.ENOTDIR}
	case !owned(&st):
		why = owner(&st) + fmt.Sprintf(": chown %d %s", os.Geteuid(), dir)
	case others != 0 && st.Mode&unix.S_ISVTX == 0:
		why = fmt.Sprintf("others may write it (mode %04o): chmod go-w %s", st.Mode&0o7777, dir)
	default:
		return nil
	}
	return fmt.Errorf("%s: %w: %s", dir, ErrDirectory, why)
}

// Pin checks an object that is pinned in a BPF file system. A missing one is trusted.
func Pin(path string) error {
	var st unix.Stat_t
	err := unix.Lstat(path, &st)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return &fs.PathError{Op: "lstat", Path: path, Err: err}
	}
	switch {
	case st.Mode&unix.S_IFMT == unix.S_IFLNK:
		return fmt.Errorf("%s is %w: it is a symbolic link", path, ErrUntrusted)
	case !owned(&st):
		return fmt.Errorf("%s is %w: %s", path, ErrUntrusted, owner(&st))
	case st.Mode&0o022 != 0:
		return fmt.Errorf("%s is %w: others may write it (mode %04o)", path, ErrUntrusted, st.Mode&0o7777)
	}
	return nil
}

// Read reads a file of at most limit bytes.
func Read(path string, limit int64) ([]byte, error) {
	f, err := Open(path, os.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(b)) > limit {
		err = fmt.Errorf("%s has more than %d bytes", path, limit)
	}
	if err != nil {
		return nil, err
	}
	return b, nil
}

// Replace writes a file, mode 0600, in a single step: a crash leaves the old file or the new. The
// data are on the disk first. The new file is PATH.new meanwhile.
func Replace(path string, data []byte) error {
	name := path + ".new"
	if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := Create(name)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = os.Rename(name, path)
	}
	if err != nil {
		_ = os.Remove(name)
	}
	return err
}
