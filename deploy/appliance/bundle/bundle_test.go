package bundle

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// arch is that of the bundles.
const arch = "amd64"

// on is a machine that they are for.
var on = Machine{Architecture: arch, Room: 1 << 20, Boot: 1 << 20}

// sink is where the files of a bundle go in a test.
type sink map[string]*bytes.Buffer

type closing struct{ *bytes.Buffer }

func (closing) Close() error { return nil }

func (s sink) create(name string) (io.WriteCloser, error) {
	s[name] = &bytes.Buffer{}
	return closing{s[name]}, nil
}

func written(t *testing.T, architecture string) []byte {
	t.Helper()
	dir := t.TempDir()
	for _, name := range Files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(strings.Repeat(name, 1000)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var b bytes.Buffer
	if err := Write(&b, &Manifest{Version: "1.2.3", Architecture: architecture, Options: "quiet"}, dir); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestABundleIsReadAsItWasWritten(t *testing.T) {
	s := sink{}
	m, err := Read(bytes.NewReader(written(t, arch)), on, s.create)
	if err != nil {
		t.Fatal(err)
	}
	if m.Version != "1.2.3" || m.Options != "quiet" || len(s) != len(Files) {
		t.Errorf("%+v with %d files", m, len(s))
	}
	for _, name := range Files {
		if got := s[name].String(); got != strings.Repeat(name, 1000) {
			t.Errorf("%s has %d bytes", name, len(got))
		}
	}
}

// A bundle that ends early, or has other bytes, is no bundle.
func TestADamagedBundleIsRefused(t *testing.T) {
	whole := written(t, arch)
	for n := 0; n < len(whole)-1024; n += 512 { // the end of a tar is 1,024 zeros
		if _, err := Read(bytes.NewReader(whole[:n]), on, sink{}.create); err == nil {
			t.Fatalf("the first %d of %d bytes are accepted", n, len(whole))
		} else if n > 0 && !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Fatalf("the first %d of %d bytes: %v", n, len(whole), err)
		}
	}
	bad := bytes.Clone(whole)
	bad[bytes.LastIndex(bad, []byte("rootroot"))] ^= 1
	if _, err := Read(bytes.NewReader(bad), on, sink{}.create); err == nil || !strings.Contains(err.Error(), "SHA-256") {
		t.Errorf("another byte: %v", err)
	}
}

// A release for another architecture is refused before any of its files; releases that name
// none are of amd64.
func TestABundleOfAnotherArchitectureIsRefused(t *testing.T) {
	for _, test := range []struct {
		of, machine string
		ok          bool
	}{
		{"amd64", "amd64", true},
		{"", "amd64", true},
		{"arm64", "amd64", false},
		{"", "arm64", false},
	} {
		s := sink{}
		_, err := Read(bytes.NewReader(written(t, test.of)), Machine{test.machine, 1 << 20, 1 << 20}, s.create)
		if (err == nil) != test.ok || !test.ok && len(s) != 0 {
			t.Errorf("%q on %s: %v, %d files", test.of, test.machine, err, len(s))
		}
	}
}

// A release that is too large is refused before any of its files.
func TestABundleWithoutRoomIsRefused(t *testing.T) {
	const kernel, initramfs, root = int64(len(Kernel) * 1000), int64(len(Initramfs) * 1000), int64(len(Root) * 1000)
	for _, test := range []struct {
		room, boot int64
		ok         bool
	}{
		{root, kernel + initramfs, true},
		{root - 1, kernel + initramfs, false},
		{root, kernel + initramfs - 1, false},
		{root, kernel - 1, false},
		{root, -1, false},
	} {
		s := sink{}
		_, err := Read(bytes.NewReader(written(t, arch)), Machine{arch, test.room, test.boot}, s.create)
		if (err == nil) != test.ok || !test.ok && len(s) != 0 {
			t.Errorf("room for %d and %d: %v, %d files", test.room, test.boot, err, len(s))
		}
	}
}
