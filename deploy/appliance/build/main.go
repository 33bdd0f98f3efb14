// Build makes the appliance: a disk image, and the bundle that updates an older one to it.
//
//	make appliance
//
// Debian's packages come from its mirror, by mmdebstrap; nothing else is fetched. It needs
// root, as mmdebstrap makes a root file system with its owners.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/weirlb/weir/deploy/appliance/bundle"
)

// kernelOptions are those of the kernel in either slot. A kernel that panics reboots, so that
// the loader counts the boot.
const kernelOptions = "console=tty0 console=ttyS0,115200 panic=10 quiet loglevel=4 systemd.firstboot=no systemd.ssh_auto=no"

// maker is a build.
type maker struct {
	root     string // of the module
	deb      string // package of Weir
	out      string
	packages string // of Debian, beside those of the appliance
	version  string
	stage    string // scratch
}

func main() {
	var m maker
	flag.StringVar(&m.deb, "deb", "", "`package` of Weir, of make release")
	flag.StringVar(&m.out, "out", "bin/appliance", "`directory` to write")
	flag.StringVar(&m.packages, "packages", "", "comma-separated `packages` of Debian to add, such as firmware")
	flag.Parse()
	if err := m.run(); err != nil {
		fmt.Fprintln(os.Stderr, "appliance:", err)
		os.Exit(1)
	}
}

func (m *maker) run() (err error) {
	if os.Geteuid() != 0 {
		return errors.New("mmdebstrap makes files of other owners: run this as root")
	}
	if err := m.complete(); err != nil {
		return err
	}
	if m.stage, err = os.MkdirTemp("", "weir-appliance-"); err != nil {
		return err
	}
	defer os.RemoveAll(m.stage)
	if err := os.MkdirAll(m.out, 0o755); err != nil {
		return err
	}
	for _, step := range []struct {
		name string
		run  func() error
	}{
		{"the appliance's program", m.agent},
		{"the root file system", m.rootFileSystem},
		{"the root's image", m.squash},
		{"the boot partition", m.bootPartition},
		{"the disk image", m.disk},
		{"the update", m.bundle},
	} {
		fmt.Fprintln(os.Stderr, "appliance:", step.name)
		if err := step.run(); err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
	}
	return nil
}

func (m *maker) complete() error {
	root, err := output("go", "list", "-m", "-f", "{{.Dir}}")
	if err != nil {
		return err
	}
	m.root = root
	if m.deb, err = filepath.Abs(m.deb); err != nil {
		return err
	}
	if m.version, err = output("dpkg-deb", "-f", m.deb, "Version"); err != nil {
		return fmt.Errorf("--deb %q: %w", m.deb, err)
	}
	return nil
}

func (m *maker) at(names ...string) string {
	return filepath.Join(append([]string{m.stage}, names...)...)
}

// agent builds the program of the appliance.
func (m *maker) agent() error {
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", m.at("agent"), "./deploy/appliance/agent")
	cmd.Dir = m.root
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	return run(cmd)
}

// bundle writes the update: the files of a slot.
func (m *maker) bundle() error {
	f, err := os.Create(filepath.Join(m.out, "weir-appliance.tar"))
	if err != nil {
		return err
	}
	defer f.Close()
	manifest := bundle.Manifest{Version: m.version, Architecture: "amd64", Options: kernelOptions}
	return errors.Join(bundle.Write(f, &manifest, m.at("slot")), f.Close())
}

// command runs a program, whose output is shown if it fails.
func command(name string, args ...string) error { return run(exec.Command(name, args...)) }

func run(cmd *exec.Cmd) error {
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", cmd.Path, err, tail(string(out), 60))
	}
	return nil
}

func output(name string, args ...string) (string, error) {
	out, err := exec.Command(name, args...).Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		err = fmt.Errorf("%s: %w: %s", name, err, exit.Stderr)
	}
	return strings.TrimSpace(string(out)), err
}

// tail returns the last lines of a text.
func tail(text string, lines int) string {
	all := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}
