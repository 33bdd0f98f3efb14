package manifest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// file is a file as last read.
type file struct {
	path    string
	stamp   fileStamp
	docs    []document // raw is dropped once decoded
	objects [][]object // per document
	units   units
	fault   *fault // of the file as a whole
	// clean is true when everything in it is served (or of no use to Weir):
	// as long as its stamp is the same it need not be read again.
	clean bool
	// accepted is the state in which the file was last accepted.
	accepted fileStamp
	// unfinished, if not nil, means that it is probably being written: the
	// rest is as it was before.
	unfinished *unfinished
}

// fileStamp distinguishes states of a file.
type fileStamp struct {
	dev, ino     uint64
	size         int64
	mtime, ctime syscall.Timespec
}

func stampOf(info fs.FileInfo) fileStamp {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return fileStamp{}
	}
	return fileStamp{dev: uint64(st.Dev), ino: st.Ino, size: st.Size, mtime: st.Mtim, ctime: st.Ctim}
}

// settled reports whether a later write is sure to change the stamp: on many file systems
// two writes within a clock tick leave the same times.
func (s fileStamp) settled() bool {
	return s != fileStamp{} && time.Since(time.Unix(s.ctime.Unix())) > 2*time.Second
}

// list returns the files that path stands for, sorted.
func list(path string) ([]string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("manifests: %w", err)
	}
	if !info.IsDir() {
		return []string{path}, nil
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil, fmt.Errorf("manifests: %w", err)
	}
	var paths []string
	for _, e := range entries {
		name := e.Name()
		if strings.HasPrefix(name, ".") || e.IsDir() {
			continue
		}
		switch filepath.Ext(name) {
		case ".yaml", ".yml", ".json":
			paths = append(paths, filepath.Join(path, name))
		}
	}
	return paths, nil
}

// read returns a file decoded, or as it was when it has not changed since; nil if it is not
// a file (any more).
func (s *Source) read(path string) (*file, error) {
	old := s.files[path]
	info, err := os.Stat(path)
	if err != nil {
		// Gone since the directory was listed. A link to nowhere is a fault.
		if _, lerr := os.Lstat(path); errors.Is(lerr, fs.ErrNotExist) && path != s.cfg.Path {
			return nil, nil
		}
		return nil, withoutPath(err)
	}
	if info.IsDir() {
		return nil, nil
	}
	if !info.Mode().IsRegular() {
		return nil, errors.New("not a regular file")
	}
	if old != nil && old.clean && old.stamp.settled() && old.stamp == stampOf(info) {
		return old, nil
	}
	if f := s.unfinished(old, stampOf(info)); f != nil {
		return f, nil
	}
	if info.Size() > MaxFileBytes {
		return nil, fmt.Errorf("%s exceed the limit of %s for one file", size(int(info.Size())), size(MaxFileBytes))
	}
	in, err := os.Open(path)
	if err != nil {
		return nil, withoutPath(err)
	}
	defer in.Close()
	if info, err = in.Stat(); err != nil {
		return nil, withoutPath(err)
	}
	var buf bytes.Buffer
	buf.Grow(int(min(info.Size(), MaxFileBytes)) + bytes.MinRead)
	if _, err := buf.ReadFrom(io.LimitReader(in, MaxFileBytes+1)); err != nil {
		return nil, withoutPath(err)
	}
	f := &file{path: path, stamp: stampOf(info)}
	f.decode(buf.Bytes(), s.decoder(path))
	return f, nil
}

// withoutPath drops the path from an error that will be shown beside it.
func withoutPath(err error) error {
	var pe *fs.PathError
	if errors.As(err, &pe) {
		return fmt.Errorf("%s: %w", pe.Op, pe.Err)
	}
	return err
}

// decode fills f with the objects of data. It gives up on a file that is
// plainly no manifest.
func (f *file) decode(data []byte, d *decoder) {
	docs, err := split(data)
	if err != nil {
		f.fault = &fault{reason: err.Error()}
		return
	}
	f.units = units{}
	d.units = f.units
	isJSON := filepath.Ext(f.path) == ".json"
	broken := 0
	for _, doc := range docs {
		objects := d.document(doc, isJSON)
		for i := range objects {
			if len(objects[i].faults) > 0 {
				broken++
			}
		}
		doc.line, doc.raw = doc.begins(), nil
		f.docs = append(f.docs, doc)
		f.objects = append(f.objects, objects)
		if broken > MaxFileErrors {
			f.fault = &fault{reason: fmt.Sprintf("more than %d malformed documents; the rest of the file is not read", MaxFileErrors)}
			return
		}
	}
}

// decoder returns a decoder for a file that skips texts which are served already.
func (s *Source) decoder(path string) *decoder {
	known := make(map[uint64]Key, len(s.served))
	for key, v := range s.served {
		if v.value != nil || !s.keeping {
			known[v.hash] = key
		}
	}
	var last units
	if f := s.files[path]; f != nil {
		last = f.units
	}
	return &decoder{seed: s.seed, last: last, known: func(hash uint64) (Key, bool) {
		key, ok := known[hash]
		return key, ok
	}}
}
