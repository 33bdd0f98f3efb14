package main

import (
	"archive/tar"
	"compress/gzip"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// sums is the file of the checksums, in the format of sha256sum.
const sums = "SHA256SUMS"

// archived is a file of the archive.
type archived struct {
	from, name string
	mode       int64
}

// archive writes the binary and what an installation by hand needs.
func (b *binary) archive(file, sbom string) error {
	files := []archived{
		{b.file, "weir", 0o755},
		{filepath.Join(b.root, "LICENSE"), "LICENSE", 0o644},
		{filepath.Join(b.root, "CHANGELOG.md"), "CHANGELOG.md", 0o644},
		{filepath.Join(b.root, "deploy/README.md"), "README.md", 0o644},
		{filepath.Join(b.root, "deploy/weir.yaml"), "weir.yaml", 0o644},
		{filepath.Join(b.root, "deploy/systemd/weir.service"), "systemd/weir.service", 0o644},
		{filepath.Join(b.root, "deploy/systemd/weir-decap.service"), "systemd/weir-decap.service", 0o644},
		{filepath.Join(b.extras, "weir.bash"), "completion/weir.bash", 0o644},
		{filepath.Join(b.extras, "_weir"), "completion/_weir", 0o644},
		{filepath.Join(b.extras, "weir.fish"), "completion/weir.fish", 0o644},
		{sbom, "weir.cdx.json", 0o644},
	}
	more := map[string]string{"man": filepath.Join(b.extras, "man", "*.8"), "examples": filepath.Join(b.root, "deploy/examples/*.yaml")}
	for _, dir := range slices.Sorted(maps.Keys(more)) {
		found, err := filepath.Glob(more[dir]) // sorted
		if err != nil {
			return err
		}
		for _, f := range found {
			files = append(files, archived{f, dir + "/" + filepath.Base(f), 0o644})
		}
	}
	a, err := newArchive(file, b.time)
	if err != nil {
		return err
	}
	for _, f := range files {
		if err = a.add(f.from, path.Join(b.name(), f.name), f.mode); err != nil {
			break
		}
	}
	return errors.Join(err, a.close())
}

// tarball is a compressed archive whose files are owned by root and have the time of the release.
type tarball struct {
	file *os.File
	zip  *gzip.Writer
	tar  *tar.Writer
	time time.Time
}

func newArchive(name string, at time.Time) (*tarball, error) {
	f, err := os.Create(name)
	if err != nil {
		return nil, err
	}
	z, err := gzip.NewWriterLevel(f, gzip.BestCompression)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &tarball{f, z, tar.NewWriter(z), at}, nil
}

func (t *tarball) close() error { return errors.Join(t.tar.Close(), t.zip.Close(), t.file.Close()) }

func (t *tarball) text(name string, text []byte) error {
	if err := t.tar.WriteHeader(header(name, 0o644, int64(len(text)), t.time)); err != nil {
		return err
	}
	_, err := t.tar.Write(text)
	return err
}

func (t *tarball) add(from, name string, mode int64) error {
	return add(t.tar, from, name, mode, t.time)
}

func header(name string, mode, size int64, at time.Time) *tar.Header {
	return &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: mode, Size: size, ModTime: at, Uname: "root", Gname: "root", Format: tar.FormatPAX}
}

// add appends a file to an archive.
func add(t *tar.Writer, from, name string, mode int64, at time.Time) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	st, err := in.Stat()
	if err != nil {
		return err
	}
	if err := t.WriteHeader(header(name, mode, st.Size(), at)); err != nil {
		return err
	}
	_, err = io.Copy(t, in)
	return err
}

// checksums writes the SHA-256 of every file in dir.
func checksums(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	var text strings.Builder
	for _, e := range entries {
		sum, err := sha256File(filepath.Join(dir, e.Name()))
		if err != nil {
			return err
		}
		fmt.Fprintf(&text, "%x  %s\n", sum, e.Name())
	}
	return os.WriteFile(filepath.Join(dir, sums), []byte(text.String()), 0o644)
}

func sha256File(file string) ([]byte, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return nil, err
	}
	return h.Sum(nil), nil
}
