package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	stateDevice = byPartition + "weir-state"
	stateMount  = runFolder + "/var" // which fstab binds to /var
	// stateFile has the reason why the state is in memory.
	stateFile = runFolder + "/state"
)

// stateWithin is how long a disk may take to appear.
const stateWithin = 30 * time.Second

// mountFlags are those of the state, on the disk or in memory.
const mountFlags = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC

// mountState mounts the state partition, or memory in place of a partition that is damaged, is
// not there, or cannot be written: the drive then has the configuration, and Weir serves.
func mountState() error {
	if err := os.MkdirAll(stateMount, 0o755); err != nil {
		return err
	}
	err := mountPartition()
	if err == nil {
		return nil
	}
	fmt.Fprintln(os.Stderr, "appliance: state in memory:", err)
	if err := unix.Mount("tmpfs", stateMount, "tmpfs", mountFlags, "mode=0755,size=128m"); err != nil {
		return err
	}
	if readOnly(stateDevice) {
		if err := copyState(); err != nil {
			fmt.Fprintln(os.Stderr, "appliance: the state cannot be read:", err)
		}
	}
	return os.WriteFile(stateFile, []byte(strings.TrimSpace(err.Error())), 0o644)
}

// mountPartition mounts the state partition. It is then writable.
func mountPartition() error {
	if err := mendState(); err != nil {
		return err
	}
	return unix.Mount(stateDevice, stateMount, "ext4", mountFlags|unix.MS_NOATIME, "errors=remount-ro")
}

// readOnly reports whether the kernel refuses to write to a block device: a flash disk that is
// worn out may still be read.
func readOnly(device string) bool {
	f, err := os.Open(device)
	if err != nil {
		return false
	}
	defer f.Close()
	set, err := unix.IoctlGetInt(int(f.Fd()), unix.BLKROGET)
	return err == nil && set != 0
}

// copyState copies the saved configurations and the SSH server's key from a state partition
// that cannot be written into memory, all of them or none: a configuration must be whole.
func copyState() error {
	dir := runFolder + "/read-only"
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	// The journal cannot be replayed. Configurations were synced when they were saved.
	if err := unix.Mount(stateDevice, dir, "ext4", mountFlags|unix.MS_RDONLY, "norecovery"); err != nil {
		return err
	}
	folder := strings.TrimPrefix(stateFolder, "/var")
	err := os.MkdirAll(filepath.Dir(stateMount+folder), 0o755)
	if err == nil {
		if out, failed := exec.Command("cp", "-a", dir+folder, stateMount+folder).CombinedOutput(); failed != nil {
			err = errors.Join(fmt.Errorf("cp: %w: %s", failed, out), os.RemoveAll(stateMount+folder))
		}
	}
	return errors.Join(err, unix.Unmount(dir, 0))
}

// mendState checks the state partition. An appliance has nobody to ask, so that all is mended
// that can be.
func mendState() error {
	if !waitFor(stateDevice, stateWithin) {
		return fmt.Errorf("%s: %w", stateDevice, os.ErrNotExist)
	}
	var out []byte
	var err error
	for _, manner := range []string{"-p", "-y"} {
		out, err = exec.Command("e2fsck", manner, stateDevice).CombinedOutput()
		var exit *exec.ExitError
		if err == nil || errors.As(err, &exit) && exit.ExitCode() < 4 { // 1, 2: it has mended all
			return nil
		}
	}
	last := strings.Split(strings.TrimSpace(string(out)), "\n")
	return fmt.Errorf("e2fsck: %w: %s", err, last[len(last)-1])
}
