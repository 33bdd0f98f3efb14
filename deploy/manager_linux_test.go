package deploy

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// managerDir is where the manager finds the lab's directory: not below /tmp,
// which is hidden from the unit.
const managerDir = "/run/lab"

// manager is a systemd of its own: a user's, that knows only the units given
// to it, in a PID namespace that ends with the test, with everything read-only
// but its own directory.
type manager struct {
	Dir     string // is mounted at managerDir; holds runtime, units, home
	Control string // cgroup to live in
	Systemd string
}

const managerVariable = "WEIR_TEST_MANAGER"

func (m *manager) variable() string {
	b, err := json.Marshal(m)
	if err != nil {
		panic(err)
	}
	return managerVariable + "=" + string(b)
}

// manage is the first process of the PID namespace: it starts systemd and
// collects what that leaves behind.
func manage(text string) error {
	var m manager
	if err := json.Unmarshal([]byte(text), &m); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(m.Control, "cgroup.procs"), []byte("0"), 0); err != nil {
		return fmt.Errorf("cgroup: %w", err)
	}
	if err := m.mounts(); err != nil {
		return err
	}
	cmd := exec.Command(m.Systemd, "--user", "--unit=basic.target", "--log-target=console", "--log-level=info", "--show-status=no")
	cmd.Env = []string{
		"PATH=/usr/bin:/bin:/usr/sbin:/sbin", "HOME=" + managerDir + "/home",
		"XDG_RUNTIME_DIR=" + managerDir + "/runtime", "XDG_CONFIG_HOME=" + managerDir + "/config",
		"SYSTEMD_UNIT_PATH=" + managerDir + "/units",
	}
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := cmd.Start(); err != nil {
		return err
	}
	for {
		var ws unix.WaitStatus
		pid, err := unix.Wait4(-1, &ws, 0, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return err
		case pid == cmd.Process.Pid:
			return fmt.Errorf("systemd ended with status %d", ws.ExitStatus())
		}
	}
}

func (m *manager) mounts() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		return fmt.Errorf("/proc: %w", err)
	}
	lab, err := unix.OpenTree(unix.AT_FDCWD, m.Dir, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return fmt.Errorf("%s: %w", m.Dir, err)
	}
	writable := []string{"/proc", "/dev", "/sys/fs/bpf", "/sys/fs/cgroup", managerDir}
	for _, dir := range []string{"/run", "/tmp", "/var/tmp"} {
		if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "mode=1777"); err != nil {
			return fmt.Errorf("%s: %w", dir, err)
		}
		writable = append(writable, dir)
	}
	// The latter is how systemd tells that the machine is one of systemd's.
	for _, dir := range []string{managerDir, "/run/systemd/system"} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	// What the system's systemd keeps to hide things behind.
	hide := "/run/systemd/inaccessible"
	if err := errors.Join(os.Mkdir(hide, 0o755), os.Mkdir(hide+"/dir", 0), unix.Mknod(hide+"/reg", unix.S_IFREG, 0), unix.Mknod(hide+"/sock", unix.S_IFSOCK, 0),
		unix.Mknod(hide+"/fifo", unix.S_IFIFO, 0), unix.Mknod(hide+"/chr", unix.S_IFCHR, 0)); err != nil {
		return fmt.Errorf("%s: %w", hide, err)
	}
	if err := unix.MoveMount(lab, "", unix.AT_FDCWD, managerDir, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("%s: %w", managerDir, err)
	}
	// Its log goes to the console, whatever standard error is.
	if err := unix.Mount(managerDir+"/systemd.log", "/dev/console", "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("/dev/console: %w", err)
	}
	attr := &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}
	if err := unix.MountSetattr(unix.AT_FDCWD, "/", unix.AT_RECURSIVE, attr); err != nil {
		return fmt.Errorf("make everything read-only: %w", err)
	}
	for _, dir := range writable {
		attr := &unix.MountAttr{Attr_clr: unix.MOUNT_ATTR_RDONLY}
		if err := unix.MountSetattr(unix.AT_FDCWD, dir, unix.AT_RECURSIVE, attr); err != nil {
			return fmt.Errorf("make %s writable: %w", dir, err)
		}
	}
	return nil
}
