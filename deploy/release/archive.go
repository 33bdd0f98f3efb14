package main

import (
	"archive/tar"
	"compress/gzip"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"
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
	out, err := os.Create(file)
	if err != nil {
		return err
	}
	defer out.Close()
	z, err := gzip.NewWriterLevel(out, gzip.BestCompression)
	if err != nil {
		return err
	}
	t := tar.NewWriter(z)
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
	pages, err := filepath.Glob(filepath.Join(b.extras, "man", "*.8")) // sorted
	if err != nil {
		return err
	}
	for _, page := range pages {
		files = append(files, archived{page, "man/" + filepath.Base(page), 0o644})
	}
	for _, f := range files {
		if err := b.add(t, f.from, path.Join(b.name(), f.name), f.mode); err != nil {
			return err
		}
	}
	if err := t.Close(); err != nil {
		return err
	}
	if err := z.Close(); err != nil {
		return err
	}
	return out.Close()
}

// add appends a file, owned by root, with the time of the release.
func (b *binary) add(t *tar.Writer, from, name string, mode int64) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	st, err := in.Stat()
	if err != nil {
		return err
	}
	h := &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: mode, Size: st.Size(), ModTime: b.time, Uname: "root", Gname: "root", Format: tar.FormatPAX}
	if err := t.WriteHeader(h); err != nil {
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
