package vm

import (
	"fmt"
	"io"
	"os"
	"path"
	"time"
)

// archive writes a cpio archive in the format newc, as the kernel unpacks it (Linux
// Documentation/driver-api/early-userspace/buffer-format.rst).
type archive struct {
	w     io.Writer
	n     int64
	inode int
	dirs  map[string]bool
	err   error
}

// Modes of entries (inode(7)).
const (
	modeFile   = 0o100755
	modeFolder = 0o040755
	modeDevice = 0o020600
)

func newArchive(w io.Writer) *archive {
	return &archive{w: w, dirs: map[string]bool{".": true, "/": true}}
}

func (a *archive) write(b []byte) {
	if a.err == nil {
		var n int
		n, a.err = a.w.Write(b)
		a.n += int64(n)
	}
}

func (a *archive) pad() {
	if r := a.n % 4; r != 0 {
		a.write(make([]byte, 4-r))
	}
}

// header writes an entry's header and name. size is that of the content, which follows.
func (a *archive) header(name string, mode int, size int64, major, minor int) {
	a.inode++
	a.write(fmt.Appendf(nil, "070701%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X",
		a.inode, mode, 0, 0, 1, time.Now().Unix(), size, 0, 0, major, minor, len(name)+1, 0))
	a.write(append([]byte(name), 0))
	a.pad()
}

// folder adds a folder and those above it.
func (a *archive) folder(name string) {
	name = path.Clean(name)
	if a.dirs[name] {
		return
	}
	a.folder(path.Dir(name))
	a.dirs[name] = true
	a.header(name, modeFolder, 0, 0, 0)
}

// device adds a character device.
func (a *archive) device(name string, major, minor int) {
	a.folder(path.Dir(name))
	a.header(name, modeDevice, 0, major, minor)
}

// data adds a file with content.
func (a *archive) data(name string, content []byte) {
	a.folder(path.Dir(name))
	a.header(name, modeFile, int64(len(content)), 0, 0)
	a.write(content)
	a.pad()
}

// file adds a copy of the file at from.
func (a *archive) file(name, from string) {
	content, err := os.ReadFile(from)
	if err != nil {
		if a.err == nil {
			a.err = err
		}
		return
	}
	a.data(name, content)
}

// close ends the archive.
func (a *archive) close() error {
	a.header("TRAILER!!!", 0, 0, 0, 0)
	a.pad()
	return a.err
}
