package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// machine is a root file system that packages are installed into, with a network of its own:
// a removal cleans up what Weir has left on the host.
type machine struct {
	t    *testing.T
	root string
}

func newMachine(t *testing.T) *machine {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: rpm changes the root directory for scripts")
	}
	for _, program := range []string{"rpm", "rpmbuild"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("%v (Debian: apt-get install rpm)", err)
		}
	}
	m := &machine{t: t, root: t.TempDir()}
	if err := os.Mkdir(filepath.Join(m.root, "proc"), 0o755); err != nil {
		t.Fatal(err)
	}
	m.must(m.rpm("--initdb"))
	return m
}

// run executes a program of this machine in namespaces of its own.
func (m *machine) run(args ...string) (string, error) {
	// A cleanup looks up the network namespace in /proc.
	inside := []string{"--net", "--mount", "sh", "-c", `mount -t proc proc "$0/proc" && exec "$@"`, m.root}
	cmd := exec.Command("unshare", append(inside, args...)...)
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "LC_ALL=C"}
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%v: %w\n%s", args, err, out)
	}
	return string(out), err
}

func (m *machine) must(out string, err error) string {
	m.t.Helper()
	if err != nil {
		m.t.Fatal(err)
	}
	return out
}

// rpm is the real one. A script that fails is a warning for it, and an error here.
func (m *machine) rpm(args ...string) (string, error) {
	out, err := m.run(append([]string{"rpm", "--root", m.root, "--define", "_dbpath /var/lib/rpm"}, args...)...)
	if err == nil && strings.Contains(out, "scriptlet failed") {
		err = fmt.Errorf("rpm %v: %s", args, out)
	}
	return out, err
}

// provide installs a package with what a system has before: the programs of scripts, with their
// libraries.
func (m *machine) provide(capabilities string, programs ...string) {
	m.t.Helper()
	libraries := regexp.MustCompile(`/\S+\.so\S*`)
	dir, files := m.t.TempDir(), map[string]bool{}
	for _, program := range programs {
		files[program] = true
		for _, file := range libraries.FindAllString(m.must(m.run("ldd", program)), -1) {
			files[file] = true
		}
	}
	spec := "Name: base\nVersion: 1\nRelease: 1\nSummary: base\nLicense: none\nAutoReqProv: no\nProvides: " + capabilities +
		"\n%description\nbase\n%install\n"
	list := "%files\n"
	for file := range files {
		spec += fmt.Sprintf("install -D %s %%{buildroot}%s\n", file, file)
		list += file + "\n"
	}
	file := filepath.Join(dir, "base.spec")
	if err := os.WriteFile(file, []byte(spec+list), 0o644); err != nil {
		m.t.Fatal(err)
	}
	m.must(m.run("rpmbuild", "-bb", "--quiet", "--define", "_topdir "+dir, "--define", "__os_install_post %{nil}", file))
	built, err := filepath.Glob(filepath.Join(dir, "RPMS/*/*.rpm"))
	if err != nil || len(built) != 1 {
		m.t.Fatalf("files %v, %v", built, err)
	}
	m.must(m.rpm("-i", built[0]))
}

// write writes a file of the machine.
func (m *machine) write(name, text string, mode fs.FileMode) {
	m.t.Helper()
	file := filepath.Join(m.root, name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(text), mode)); err != nil {
		m.t.Fatal(err)
	}
}

// has fails for a file that is missing, or has other text in it.
func (m *machine) has(name, text string) {
	m.t.Helper()
	if got, err := os.ReadFile(filepath.Join(m.root, name)); err != nil || string(got) != text {
		m.t.Errorf("%s: %v, %d bytes, want %d", name, err, len(got), len(text))
	}
}

// files are the names of all files, but for the packages' database.
func (m *machine) files() (names []string) {
	m.t.Helper()
	if err := filepath.WalkDir(m.root, func(path string, d fs.DirEntry, err error) error {
		name := strings.TrimPrefix(path, m.root)
		if err == nil && !d.IsDir() && !strings.HasPrefix(name, "/var/lib/rpm/") {
			names = append(names, name)
		}
		return err
	}); err != nil {
		m.t.Fatal(err)
	}
	return names
}

// twoReleases packs a program as two versions whose configurations differ, and returns the packages
// with the configurations.
func twoReleases(t *testing.T) (packages, configurations [2]string) {
	t.Helper()
	o := testOptions(checkout(t), "")
	o.formats = []string{"rpm"}
	stage := t.TempDir()
	b, err := build(o.root, stage, runtime.GOARCH, o)
	if err != nil {
		t.Fatal(err)
	}
	if b.extras, err = generate(b, stage); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(o.root, "deploy/weir.yaml")
	for i, version := range []string{"0.1.0", "0.2.0"} {
		text := string(read(t, file)) + "# Of " + version + ".\n"
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		o.out, b.version = t.TempDir(), version
		if err := b.write(o); err != nil {
			t.Fatal(err)
		}
		packages[i], configurations[i] = find(t, o.out, ".rpm"), text
	}
	return packages, configurations
}

// rpm itself installs the package by its dependencies, runs the scripts, keeps a configuration
// that an operator has edited over an upgrade, and leaves nothing else when it erases.
func TestRPMInstallsUpgradesAndErases(t *testing.T) {
	m := newMachine(t)
	packages, configurations := twoReleases(t)
	_, err := m.rpm("-i", packages[0])
	for _, capability := range []string{"/bin/sh", "coreutils"} {
		if err == nil || !strings.Contains(err.Error(), capability+" is needed by weir-0.1.0-1") {
			t.Fatalf("an installation without %s: %v", capability, err)
		}
	}
	m.provide("/bin/sh coreutils", "/bin/sh", "/bin/rm", "/bin/cat")
	m.write("/bin/systemctl", "#!/bin/sh\necho \"$*\" >>/calls\n", 0o755)
	before := m.files()

	// Without systemd, as in the build of an image.
	if out := m.must(m.rpm("-i", packages[0])); !strings.Contains(out, "&& weir run --config /etc/weir/weir.yaml") {
		t.Errorf("the installation does not tell how to start:\n%s", out)
	}
	m.calls()
	m.must(m.rpm("-V", "weir"))
	m.has("/etc/weir/weir.yaml", configurations[0])
	m.installed()

	// The program refuses this configuration, so the running one goes on.
	const edited = "kind: an operator's\n"
	m.write("/etc/weir/weir.yaml", edited, 0o640)
	if _, err := m.rpm("-V", "weir"); err == nil || !strings.Contains(err.Error(), "c /etc/weir/weir.yaml") {
		t.Errorf("rpm -V does not show the edited configuration: %v", err)
	}
	m.write("/run/systemd/system/.keep", "", 0o644)
	out := m.must(m.rpm("-U", packages[1]))
	if !strings.Contains(out, "goes on with the former version") {
		t.Errorf("the upgrade does not tell of the configuration:\n%s", out)
	}
	m.calls("daemon-reload", "is-active --quiet weir.service", "is-active --quiet weir-decap.service", "restart weir-decap.service")
	if got := m.must(m.rpm("-q", "--queryformat", "%{version}", "weir")); got != "0.2.0" {
		t.Errorf("after the upgrade: %s", got)
	}
	m.has("/etc/weir/weir.yaml", edited)
	m.has("/etc/weir/weir.yaml.rpmnew", configurations[1])

	m.write("/run/weir/conntrack", "", 0o600)
	m.write("/etc/weir/manifests/services.yaml", "", 0o600)
	m.must(m.rpm("-e", "weir"))
	m.calls("disable --now weir.service weir-decap.service", "daemon-reload")
	m.has("/etc/weir/weir.yaml.rpmsave", edited)
	left := slices.DeleteFunc(m.files(), func(name string) bool { return slices.Contains(before, name) })
	want := []string{"/etc/weir/manifests/services.yaml", "/etc/weir/weir.yaml.rpmnew", "/etc/weir/weir.yaml.rpmsave", "/run/systemd/system/.keep"}
	if !slices.Equal(left, want) {
		t.Errorf("left behind: %q, want %q", left, want)
	}
}

// calls fails unless the scripts have called systemctl like this since the last time.
func (m *machine) calls(want ...string) {
	m.t.Helper()
	file := filepath.Join(m.root, "calls")
	text, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		m.t.Fatal(err)
	}
	if got := strings.Fields(string(text)); strings.Join(got, " ") != strings.Join(want, " ") {
		m.t.Errorf("systemctl was called as\n%s, want %q", text, want)
	}
	_ = os.Remove(file)
}

// installed fails unless the program runs, and where unit, completion or man pages are missing.
func (m *machine) installed() {
	m.t.Helper()
	if out := m.must(m.run("chroot", m.root, "/usr/bin/weir", "version")); !strings.Contains(out, runtime.Version()) {
		m.t.Errorf("weir version: %s", out)
	}
	names := m.files()
	for _, name := range []string{
		"/usr/lib/systemd/system/weir.service", "/usr/lib/systemd/system/weir-decap.service",
		"/usr/share/bash-completion/completions/weir", "/usr/share/zsh/site-functions/_weir",
		"/usr/share/fish/vendor_completions.d/weir.fish", "/usr/share/man/man8/weir.8", "/usr/share/man/man8/weir-connections-kill.8",
	} {
		if !slices.Contains(names, name) {
			m.t.Errorf("%s is missing", name)
		}
	}
}
