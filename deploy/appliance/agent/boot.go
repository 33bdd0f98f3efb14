package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/deploy/appliance/slot"
)

// Folders of the agent: run is gone after a boot, state is on the state partition.
const (
	runFolder   = "/run/appliance"
	stateFolder = "/var/lib/appliance"
)

// byPartition is where udev names partitions of the partition table.
const (
	byPartition   = "/dev/disk/by-partlabel/"
	bootPartition = byPartition + "weir-esp"
)

// parameter returns a parameter of the kernel's command line; the last counts.
func parameter(name string) string {
	text, _ := os.ReadFile("/proc/cmdline")
	value := ""
	for _, word := range strings.Fields(string(text)) {
		if v, ok := strings.CutPrefix(word, name+"="); ok {
			value = v
		}
	}
	return value
}

// booted is the slot that runs.
func booted() (slot.Slot, error) {
	if s := slot.Slot(parameter("weir.slot")); s == "a" || s == "b" {
		return s, nil
	}
	return "", errors.New("the kernel's command line has no weir.slot: not booted as an appliance")
}

// lockBoot has this process alone use the EFI system partition until the lock is closed.
func lockBoot() (io.Closer, error) {
	if err := os.MkdirAll(runFolder, 0o755); err != nil {
		return nil, err
	}
	lock, err := os.Create(runFolder + "/boot.lock")
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	return lock, nil
}

// withEntries mounts the EFI system partition for the time of f. It is not mounted
// otherwise: FAT has no journal, and a cut must rarely find it in use. With mend it is
// checked before: cuts in earlier updates leave clusters that no file has, until there is no
// room.
func withEntries(mend bool, f func(slot.Entries) error) error {
	lock, err := lockBoot()
	if err != nil {
		return err
	}
	defer lock.Close()
	dir := runFolder + "/boot"
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	// An update that was killed has left it mounted.
	_ = unix.Unmount(dir, unix.MNT_DETACH)
	waitFor(bootPartition, driveWithin) // udev may not have named it yet
	if mend {
		if out, err := exec.Command("fsck.fat", "-a", bootPartition).CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "appliance: fsck.fat: %v: %s", err, out) // 1: it has mended something
		}
	}
	flags := uintptr(mountFlags)
	if !mend && readOnly(bootPartition) {
		flags |= unix.MS_RDONLY
	}
	if err := unix.Mount(bootPartition, dir, "vfat", flags, "umask=0077"); err != nil {
		return fmt.Errorf("mount %s: %w", bootPartition, err)
	}
	if found, _ := filepath.Glob(dir + "/FSCK*.REC"); mend {
		for _, name := range found {
			_ = os.Remove(name)
		}
	}
	err = f(slot.Entries{Root: dir})
	return errors.Join(err, unix.Unmount(dir, 0))
}

// trial returns the entry of the booted slot, and whether the loader could boot the other
// slot instead.
func trial() (e *slot.Entry, other bool, err error) {
	s, err := booted()
	if err != nil {
		return nil, false, err
	}
	err = withEntries(false, func(b slot.Entries) error {
		if e, err = b.Of(s); err != nil {
			return err
		}
		o, err := b.Of(s.Other())
		other = err == nil && o.Bootable()
		return nil
	})
	return e, other, err
}

// reboot starts an orderly reboot, and returns.
func reboot() error {
	out, err := exec.Command("systemctl", "--no-block", "reboot").CombinedOutput()
	if err != nil {
		return fmt.Errorf("systemctl reboot: %w: %s", err, out)
	}
	return nil
}

// version is the release's, as the image has it.
func version() string {
	text, _ := os.ReadFile("/usr/lib/weir-appliance/version")
	return strings.TrimSpace(string(text))
}
