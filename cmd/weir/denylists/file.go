package denylists

import (
	"fmt"
	"net/netip"
	"os"
	"time"

	"github.com/weirlb/weir/lb/denylist"
)

// file is a list in a file.
type file struct {
	path       string
	last, seen stamp // of the last reading, and of the last look
}

// stamp changes when a file is written or replaced.
type stamp struct {
	at    time.Time
	size  int64
	inode os.FileInfo
}

func (s stamp) same(o stamp) bool {
	return s.at.Equal(o.at) && s.size == o.size && (s.inode == nil) == (o.inode == nil) &&
		(s.inode == nil || os.SameFile(s.inode, o.inode))
}

// stampOf is the zero value for a file that is not there.
func stampOf(path string) stamp {
	i, err := os.Stat(path)
	if err != nil {
		return stamp{}
	}
	return stamp{i.ModTime(), i.Size(), i}
}

func (f *file) changed() bool {
	now := stampOf(f.path)
	settled := now.same(f.seen)
	f.seen = now
	return settled && !now.same(f.last)
}

func (f *file) read() ([]netip.Prefix, error) {
	f.last = f.seen
	if i, err := os.Stat(f.path); err != nil {
		return nil, err
	} else if !i.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is no regular file", f.path)
	}
	r, err := os.Open(f.path)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	list, err := denylist.Read(r)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f.path, err)
	}
	return list, nil
}

func (f *file) taken() error { return nil }

func (f *file) forget() { f.last = stamp{size: -1} } // the zero stamp is that of no file
