package vm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
)

// programs are those that the harness runs, each with the package that has it.
var programs = []struct{ name, pkg string }{
	{"depmod", "kmod"}, {"xz", "xz-utils"}, {"ip", "iproute2"}, {"dpkg-deb", "dpkg"}, {"apt-get", "apt"},
	// In the virtual machines, which see the files of this one.
	{"ipvsadm", "ipvsadm"}, {"ipset", "ipset"}, {"iptables", "iptables"},
}

// installEmulator installs QEMU and the other programs, where they are missing. Debian 12's
// own QEMU has no igb, so that of backports is taken there.
func (a *apt) installEmulator(ctx context.Context) error {
	var packages []string
	for _, p := range programs {
		if _, err := exec.LookPath(p.name); err != nil {
			packages = append(packages, p.pkg)
		}
	}
	old := !emulates(ctx, "igb")
	if old {
		packages = append(packages, "qemu-system-x86")
	}
	if len(packages) == 0 {
		return nil
	}
	if os.Geteuid() != 0 {
		return fmt.Errorf("missing: %s; install them, or run this as root", strings.Join(packages, ", "))
	}
	a.log("install %s", strings.Join(packages, ", "))
	var options []string
	if release := codename(); release == "bookworm" && old {
		var err error
		if options, err = a.backports(release); err != nil {
			return err
		}
	}
	for _, args := range [][]string{{"update"}, append([]string{"install", "-y", "--no-install-recommends"}, packages...)} {
		cmd := exec.CommandContext(ctx, "apt-get", append(append([]string{"-qq"}, options...), args...)...)
		cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("apt-get %s: %w: %s", args[0], err, out)
		}
	}
	if !emulates(ctx, "igb") {
		return errors.New("the QEMU of this distribution is too old: igb needs 8.0")
	}
	return nil
}

// emulates reports whether the emulator is there and has a device.
func emulates(ctx context.Context, device string) bool {
	out, err := exec.CommandContext(ctx, emulator, "-device", "help").Output()
	return err == nil && strings.Contains(string(out), `name "`+device+`"`)
}

// codename is that of the distribution's release (os-release(5)).
func codename() string {
	text, _ := os.ReadFile("/etc/os-release")
	for line := range strings.Lines(string(text)) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), "VERSION_CODENAME="); ok {
			return strings.Trim(name, `"`)
		}
	}
	return ""
}

// backports returns options of apt-get with lists of a release and its backports, which are
// preferred.
func (a *apt) backports(release string) ([]string, error) {
	dir := a.path("install")
	for _, d := range []string{"sources", "lists/partial"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			return nil, err
		}
	}
	var list strings.Builder
	for _, suite := range []string{release, release + "-updates", release + "-backports"} {
		fmt.Fprintf(&list, "deb [signed-by=%s] http://deb.debian.org/debian %s main\n", keyring, suite)
	}
	fmt.Fprintf(&list, "deb [signed-by=%s] http://deb.debian.org/debian-security %s-security main\n", keyring, release)
	return []string{
		"-o", "Dir::Etc::sourcelist=/dev/null", "-o", "Dir::Etc::sourceparts=" + filepath.Join(dir, "sources"),
		"-o", "Dir::State::lists=" + filepath.Join(dir, "lists"), "-o", "APT::Default-Release=" + release + "-backports",
	}, os.WriteFile(filepath.Join(dir, "sources", "debian.list"), []byte(list.String()), 0o644)
}

// onLockedThread runs f on a thread that lives as long as the process, for a child that is
// to die with the thread that started it.
func onLockedThread(f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		done <- f()
		select {}
	}()
	return <-done
}
