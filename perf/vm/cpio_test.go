package vm

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// cpio(1) unpacks what archive writes.
func TestArchiveIsUnpacked(t *testing.T) {
	program, err := exec.LookPath("cpio")
	if err != nil {
		program, err = exec.LookPath("busybox")
	}
	if err != nil {
		t.Skip("skipped: neither cpio nor busybox")
	}
	dir := t.TempDir()
	source := filepath.Join(dir, "source")
	content := bytes.Repeat([]byte("odd"), 333)
	if err := os.WriteFile(source, content, 0o600); err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	a := newArchive(&b)
	a.data("a/b/c", []byte("text"))
	a.data("a/empty", nil)
	a.file("a/b/copy", source)
	if err := a.close(); err != nil {
		t.Fatal(err)
	}
	args := []string{"-i", "-d"}
	if filepath.Base(program) == "busybox" {
		args = append([]string{"cpio"}, args...)
	}
	cmd := exec.Command(program, args...)
	cmd.Dir, cmd.Stdin = dir, &b
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for name, want := range map[string][]byte{"a/b/c": []byte("text"), "a/empty": {}, "a/b/copy": content} {
		got, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: %q %v", name, got, err)
		}
	}
}

func TestArchiveReportsAMissingFile(t *testing.T) {
	a := newArchive(&bytes.Buffer{})
	a.file("x", filepath.Join(t.TempDir(), "missing"))
	if a.close() == nil {
		t.Error("no error")
	}
}
