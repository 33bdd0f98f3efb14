// Package bundle writes and reads updates of the appliance: a tar with a manifest, and then
// the files of a slot. It is read as a stream, since an appliance has no room for it beside
// the slots. The checksums find damage; authenticity is that of the SSH connection which
// brings it.
package bundle

import (
	"archive/tar"
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
)

// Names of the files, in the order of the tar.
const (
	Kernel    = "vmlinuz"
	Initramfs = "initrd"
	Root      = "root"

	manifestName = "manifest.json"
	maxManifest  = 64 << 10
)

// Files are all names.
var Files = []string{Kernel, Initramfs, Root}

// Manifest describes a bundle.
type Manifest struct {
	Version      string          `json:"version"`      // of the release
	Architecture string          `json:"architecture"` // as Go names it; "" in older releases, all of amd64
	Options      string          `json:"options"`      // of the kernel
	Files        map[string]File `json:"files"`
}

// File is a file of a bundle.
type File struct {
	Size   int64  `json:"size"`
	SHA256 string `json:"sha256"`
}

// oneLine matches texts that fit into a line of a boot entry.
var oneLine = regexp.MustCompile(`^[ -~]{0,1000}$`)

// Write writes a bundle of the files in dir. It sets the manifest's Files.
func Write(w io.Writer, m *Manifest, dir string) error {
	m.Files = map[string]File{}
	for _, name := range Files {
		f, err := describe(filepath.Join(dir, name))
		if err != nil {
			return err
		}
		m.Files[name] = f
	}
	text, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return err
	}
	t := tar.NewWriter(w)
	if err := t.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: manifestName, Mode: 0o644, Size: int64(len(text))}); err != nil {
		return err
	}
	if _, err := t.Write(text); err != nil {
		return err
	}
	for _, name := range Files {
		if err := add(t, name, filepath.Join(dir, name), m.Files[name].Size); err != nil {
			return err
		}
	}
	return t.Close()
}

func describe(file string) (File, error) {
	f, err := os.Open(file)
	if err != nil {
		return File{}, err
	}
	defer f.Close()
	h := sha256.New()
	n, err := io.Copy(h, f)
	return File{n, fmt.Sprintf("%x", h.Sum(nil))}, err
}

func add(t *tar.Writer, name, file string, size int64) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := t.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: size}); err != nil {
		return err
	}
	_, err = io.Copy(t, f)
	return err
}

// Machine is that for which a bundle is read.
type Machine struct {
	Architecture string // as Go names it
	Room         int64  // of the root, in bytes
	Boot         int64  // of kernel and initramfs together, in bytes
}

// Read reads a bundle for a machine. create is called with the name of each file, and returns
// where its bytes go; they are closed before the next. It is not called for a bundle whose
// manifest is not that of a release for the machine. Without an error every file was whole.
func Read(r io.Reader, on Machine, create func(name string) (io.WriteCloser, error)) (*Manifest, error) {
	t := tar.NewReader(r)
	h, err := t.Next()
	if err != nil {
		return nil, fmt.Errorf("not a bundle: %w", err)
	}
	if h.Name != manifestName || h.Size > maxManifest {
		return nil, fmt.Errorf("not a bundle: it begins with %q of %d bytes", h.Name, h.Size)
	}
	var m Manifest
	if err := json.NewDecoder(t).Decode(&m); err != nil {
		return nil, fmt.Errorf("%s: %w", manifestName, err)
	}
	if err := m.check(on); err != nil {
		return nil, err
	}
	for _, name := range Files {
		h, err := t.Next()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, unexpected(err))
		}
		want := m.Files[name]
		if h.Name != name || h.Typeflag != tar.TypeReg || h.Size != want.Size {
			return nil, fmt.Errorf("the bundle has %s of %d bytes, the manifest %s of %d", h.Name, h.Size, name, want.Size)
		}
		if err := copyFile(t, name, want, create); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	return &m, nil
}

// check returns an error for a release that a machine cannot boot.
func (m *Manifest) check(on Machine) error {
	if m.Version == "" || !oneLine.MatchString(m.Version) || !oneLine.MatchString(m.Options) {
		return fmt.Errorf("%s: version %q or options %q are none of a boot entry", manifestName, m.Version, m.Options)
	}
	if is := cmp.Or(m.Architecture, "amd64"); is != on.Architecture {
		return fmt.Errorf("the release is for %s, this machine is %s", is, on.Architecture)
	}
	for _, name := range Files {
		if m.Files[name].Size <= 0 {
			return fmt.Errorf("%s: the release has no %s", manifestName, name)
		}
	}
	if size := m.Files[Root].Size; size > on.Room {
		return fmt.Errorf("the root of %d bytes does not fit into a slot of %d", size, on.Room)
	}
	// Compared without a sum, which may overflow.
	if kernel, initramfs := m.Files[Kernel].Size, m.Files[Initramfs].Size; kernel > on.Boot || initramfs > on.Boot-kernel {
		return fmt.Errorf("kernel and initramfs of %d and %d bytes do not fit: the boot partition has %d for them", kernel, initramfs, on.Boot)
	}
	return nil
}

func copyFile(r io.Reader, name string, want File, create func(string) (io.WriteCloser, error)) error {
	w, err := create(name)
	if err != nil {
		return err
	}
	h := sha256.New()
	_, err = io.Copy(io.MultiWriter(w, h), r)
	if err := errors.Join(unexpected(err), w.Close()); err != nil {
		return err
	}
	if sum := fmt.Sprintf("%x", h.Sum(nil)); sum != want.SHA256 {
		return fmt.Errorf("its SHA-256 is %s, not %s", sum, want.SHA256)
	}
	return nil
}

// unexpected says of an end of the stream that it is none of the bundle's.
func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
