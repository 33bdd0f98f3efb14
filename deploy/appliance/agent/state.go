package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
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

// mountState mounts the state partition, or memory in place of a partition that is damaged or
// not there: the drive then has the configuration, and Weir serves.
func mountState() error {
	const flags = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	if err := os.MkdirAll(stateMount, 0o755); err != nil {
		return err
	}
	err := mendState()
	if err == nil {
		err = unix.Mount(stateDevice, stateMount, "ext4", flags|unix.MS_NOATIME, "errors=remount-ro")
	}
	if err == nil {
		return nil
	}
	fmt.Fprintln(os.Stderr, "appliance: state in memory:", err)
	return errors.Join(unix.Mount("tmpfs", stateMount, "tmpfs", flags, "mode=0755,size=64m"),
		os.WriteFile(stateFile, []byte(strings.TrimSpace(err.Error())), 0o644))
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
