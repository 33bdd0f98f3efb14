package main

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"debug/elf"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	cyclonedx "github.com/CycloneDX/cyclonedx-go"
	"github.com/sassoftware/go-rpmutils"
)

func testOptions(root, out string) options {
	return options{
		root: root, out: out, arches: []string{runtime.GOARCH}, formats: formats,
		version: "v1.2.3", time: "2026-01-02T03:04:05Z", modified: true, certificates: "/etc/ssl/certs/ca-certificates.crt",
	}
}

// checkout copies what a release is built from to another place.
func checkout(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"go.mod", "go.sum", "LICENSE", "CHANGELOG.md", "README.md", "cmd", "conntrack", "deploy", "discovery", "lb", "perf", "topology"} {
		if out, err := exec.Command("cp", "-r", filepath.Join("../..", name), dir).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	return dir
}

// Two builds in two places have the same bytes: binaries, packages, archives.
func TestReleaseIsReproducible(t *testing.T) {
	first, second := t.TempDir(), t.TempDir()
	// Both are copies, without the revision that a clone would add to one of them.
	if err := run(testOptions(checkout(t), first)); err != nil {
		t.Fatal(err)
	}
	if err := run(testOptions(checkout(t), second)); err != nil {
		t.Fatal(err)
	}
	a, b := read(t, filepath.Join(first, sums)), read(t, filepath.Join(second, sums))
	if !bytes.Equal(a, b) {
		t.Errorf("first build:\n%ssecond build:\n%s", a, b)
	}
	if got := strings.Count(string(a), "\n"); got != 6 {
		t.Errorf("%d files, want deb, rpm, archive, image, chart and bill of materials:\n%s", got, a)
	}
	for _, test := range []struct {
		name string
		test func(t *testing.T, dir string)
	}{{"archive", testArchive}, {"deb", testDeb}, {"rpm", testRPM}, {"chart", testChart}, {"image", testImageName}, {"bill of materials", testSBOM}} {
		t.Run(test.name, func(t *testing.T) { test.test(t, first) })
	}
}

func read(t *testing.T, file string) []byte {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// find returns the only file of dir with this end.
func find(t *testing.T, dir, suffix string) string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*"+suffix))
	if err != nil || len(files) != 1 {
		t.Fatalf("files with %s: %v, %v", suffix, files, err)
	}
	return files[0]
}

// The archive has a static program, that of this version, and all that it is said to have.
func testArchive(t *testing.T, dir string) {
	z, err := gzip.NewReader(bytes.NewReader(read(t, find(t, dir, ".tar.gz"))))
	if err != nil {
		t.Fatal(err)
	}
	var names, pages, found []string
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		_, name, _ := strings.Cut(h.Name, "/")
		switch dir, file := path.Split(name); dir {
		case "man/":
			pages = append(pages, file)
		case "examples/":
			found = append(found, file)
		default:
			names = append(names, name)
		}
		if h.Uid != 0 || h.Gid != 0 {
			t.Errorf("%s is owned by %d:%d", name, h.Uid, h.Gid)
		}
		if name != "weir" {
			continue
		}
		program, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		static(t, program)
		saysVersion(t, program)
	}
	want := []string{"weir", "LICENSE", "CHANGELOG.md", "README.md", "weir.yaml", "systemd/weir.service",
		"systemd/weir-decap.service", "completion/weir.bash", "completion/_weir", "completion/weir.fish", "weir.cdx.json"}
	if !slices.Equal(names, want) {
		t.Errorf("the archive has %q, want %q", names, want)
	}
	if examples, err := filepath.Glob("../examples/*.yaml"); err != nil || len(examples) != len(found) {
		t.Errorf("the archive has the examples %q, want %q, %v", found, examples, err)
	}
	for _, page := range []string{"weir.8", "weir-run.8", "weir-connections-kill.8"} {
		if !slices.Contains(pages, page) {
			t.Errorf("the archive has the man pages %q, want %s", pages, page)
		}
	}
}

// saysVersion fails unless the program has the version of the release.
func saysVersion(t *testing.T, program []byte) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "weir")
	if err := os.WriteFile(file, program, 0o755); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(file, "version").CombinedOutput(); err != nil || !strings.HasPrefix(string(out), "weir v1.2.3 ") {
		t.Errorf("weir version: %v, %s", err, out)
	}
}

func static(t *testing.T, program []byte) {
	t.Helper()
	f, err := elf.NewFile(bytes.NewReader(program))
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			t.Error("the program is linked dynamically")
		}
	}
}

func testRPM(t *testing.T, dir string) {
	rpm, err := rpmutils.ReadRpm(bufio.NewReader(bytes.NewReader(read(t, find(t, dir, ".rpm")))))
	if err != nil {
		t.Fatal(err)
	}
	files, err := rpm.Header.GetFiles()
	if err != nil {
		t.Fatal(err)
	}
	modes := map[string]int{}
	for _, f := range files {
		modes[f.Name()] = f.Mode() & 0o777
		if f.UserName() != "root" {
			t.Errorf("%s is owned by %s", f.Name(), f.UserName())
		}
	}
	for name, mode := range map[string]int{
		"/usr/bin/weir": 0o755, "/etc/weir/weir.yaml": 0o640, "/usr/lib/systemd/system/weir.service": 0o644,
		"/usr/share/zsh/site-functions/_weir": 0o644, "/usr/share/man/man8/weir.8": 0o644,
		"/usr/share/doc/weir/examples/nodeport.yaml": 0o644, "/usr/share/man/man8/weir-connections-kill.8": 0o644,
		"/usr/share/licenses/weir/LICENSE": 0o644,
		"/usr/share/doc/weir/README.md":    0o644, "/usr/share/doc/weir/cmd/weir/config/README.md": 0o644,
	} {
		if got, ok := modes[name]; !ok || got != mode {
			t.Errorf("%s has mode %o, want %o", name, got, mode)
		}
	}
	for _, name := range []string{"/usr/share/zsh/vendor-completions/_weir", "/usr/share/doc/weir/copyright"} {
		if _, ok := modes[name]; ok {
			t.Errorf("%s belongs to Debian", name)
		}
	}
}

// The bill of materials has the modules of the program, as the toolchain lists them.
func testSBOM(t *testing.T, dir string) {
	var bom cyclonedx.BOM
	if err := json.Unmarshal(read(t, find(t, dir, ".cdx.json")), &bom); err != nil {
		t.Fatal(err)
	}
	hashed := map[string]bool{}
	for _, c := range *bom.Components {
		hashed[c.Name] = c.Hashes != nil
	}
	for _, name := range []string{"github.com/cilium/ebpf", "github.com/vishvananda/netlink", "k8s.io/client-go", "golang.org/x/sys"} {
		if !hashed[name] {
			t.Errorf("%s is missing, or has no hash", name)
		}
	}
	if _, ok := hashed["std"]; !ok {
		t.Error("the standard library is missing")
	}
	if got := bom.Metadata.Component.Version; got != "1.2.3" {
		t.Errorf("version %s, want 1.2.3", got)
	}
}

// A directory with other files in it is not emptied.
func TestOutputDirectoryOfOthersIsRefused(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "thesis.txt"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	err := run(testOptions("../..", dir))
	if err == nil || !strings.Contains(err.Error(), "thesis.txt") {
		t.Errorf("error %v, want one that names the file", err)
	}
}

func TestCommandLineIsChecked(t *testing.T) {
	for _, test := range []struct {
		args []string
		want string // part of the error
	}{
		{[]string{"--arch", "vax"}, `--arch: "vax" is not one of amd64, arm64`},
		{[]string{"--formats", "exe"}, `--formats: "exe" is not one of deb, rpm, tar.gz, oci.tar, chart`},
		{[]string{"now"}, `unexpected argument "now"`},
	} {
		if _, err := parse(test.args); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%q: error %v, want %s", test.args, err, test.want)
		}
	}
	if err := run(options{root: t.TempDir(), out: t.TempDir()}); err == nil || !strings.Contains(err.Error(), "not a checkout of Weir") {
		t.Errorf("another root: %v", err)
	}
}
