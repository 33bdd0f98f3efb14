package deploy

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// boot is a root file system with an init that becomes process 1 of a PID namespace.
type boot struct {
	Root    string // of a Debian with systemd
	Control string // cgroup to live in, made by the caller
	Console string // file for what systemd prints
}

const bootVariable = "WEIR_TEST_BOOT"

func (b *boot) variable() string {
	text, err := json.Marshal(b)
	if err != nil {
		panic(err)
	}
	return bootVariable + "=" + string(text)
}

// bootInto is the first process of new PID, mount, IPC and UTS namespaces. It returns
// only with an error.
func bootInto(text string) error {
	var b boot
	if err := json.Unmarshal([]byte(text), &b); err != nil {
		return err
	}
	// The cgroup namespace is made within the cgroup: it is the root for systemd.
	if err := os.WriteFile(filepath.Join(b.Control, "cgroup.procs"), []byte("0"), 0); err != nil {
		return fmt.Errorf("cgroup: %w", err)
	}
	if err := unix.Unshare(unix.CLONE_NEWCGROUP); err != nil {
		return fmt.Errorf("cgroup namespace: %w", err)
	}
	if err := b.mounts(); err != nil {
		return err
	}
	if err := b.pivot(); err != nil {
		return err
	}
	return unix.Exec("/sbin/init", []string{"/sbin/init", "--log-target=console", "--show-status=no"},
		[]string{"container=weir-test", "PATH=/usr/sbin:/usr/bin:/sbin:/bin"})
}

// mounts makes in the root what a kernel and an initramfs leave to systemd.
func (b *boot) mounts() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := unix.Mount(b.Root, b.Root, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("%s: %w", b.Root, err)
	}
	for _, m := range []struct{ kind, dir, options string }{
		{"proc", "proc", ""}, {"sysfs", "sys", ""}, {"cgroup2", "sys/fs/cgroup", ""}, {"bpf", "sys/fs/bpf", ""},
		{"tmpfs", "dev", "mode=755"}, {"devpts", "dev/pts", "newinstance,ptmxmode=0666,mode=620"},
		{"tmpfs", "dev/shm", "mode=1777"}, {"tmpfs", "run", "mode=755"}, {"tmpfs", "tmp", "mode=1777"},
	} {
		dir := filepath.Join(b.Root, m.dir)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(m.kind, dir, m.kind, 0, m.options); err != nil {
			return fmt.Errorf("%s: %w", dir, err)
		}
	}
	return b.devices()
}

func (b *boot) devices() error {
	from := map[string]string{"console": b.Console}
	for _, name := range []string{"null", "zero", "full", "random", "urandom", "tty"} {
		from[name] = "/dev/" + name
	}
	for name, source := range from {
		file := filepath.Join(b.Root, "dev", name)
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			return err
		}
		if err := unix.Mount(source, file, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
	}
	return os.Symlink("pts/ptmx", filepath.Join(b.Root, "dev/ptmx"))
}

// pivot makes the root the only file system that is seen.
func (b *boot) pivot() error {
	old := filepath.Join(b.Root, "mnt")
	return errors.Join(unix.PivotRoot(b.Root, old), os.Chdir("/"), unix.Unmount("/mnt", unix.MNT_DETACH))
}
