package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	drive      = "/dev/disk/by-label/WEIR-CONFIG"
	weirFolder = "/etc/weir"
	// saved is a link to the folder of the last configuration.
	saved = stateFolder + "/config"
)

// driveWithin is how long a drive may take to appear: USB needs seconds. maxConfig bounds the
// files of a drive, which are kept in memory.
const (
	driveWithin = 10 * time.Second
	maxConfig   = 32 << 20
)

// configure applies the configuration of the drive. Without a drive, or if it cannot be used,
// that of an earlier boot counts: a stick may be taken out after the first boot, and a worn
// stick must not end the service.
func configure() error {
	for _, dir := range []string{runFolder, stateFolder} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	if err := hostKey(); err != nil {
		fmt.Fprintln(os.Stderr, "appliance: nobody can log in:", err) // but Weir can serve
	}
	var take func() error
	if waitFor(drive, driveWithin) {
		take = fromDrive
	}
	dir, source, err := choose(take, saved)
	if err != nil {
		return err
	}
	if err := apply(dir); err != nil {
		return err
	}
	return os.WriteFile(runFolder+"/source", []byte(source), 0o644)
}

// choose returns the folder to which link points, after take has replaced it from a drive, if
// there is one, and tells where it is from.
func choose(take func() error, link string) (dir, source string, err error) {
	source = "an earlier boot"
	if take != nil {
		if err = take(); err == nil {
			source = "the drive"
		} else {
			err = fmt.Errorf("the drive WEIR-CONFIG cannot be used: %w", err)
			source += ": " + err.Error()
		}
	}
	dir, missing := filepath.EvalSymlinks(link)
	switch {
	case missing == nil:
		return dir, source, nil
	case err != nil:
		return "", "", err
	}
	return "", "", errors.New("no configuration: attach a drive labelled WEIR-CONFIG and reboot")
}

func waitFor(file string, limit time.Duration) bool {
	for deadline := time.Now().Add(limit); ; time.Sleep(100 * time.Millisecond) {
		if _, err := os.Stat(file); err == nil {
			return true
		}
		if time.Now().After(deadline) {
			return false
		}
	}
}

// fromDrive copies the drive to the state partition. It is used from there alone.
func fromDrive() error {
	dir := runFolder + "/drive"
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if out, err := exec.Command("mount", "-t", "vfat,iso9660,ext4", "-o", "ro,nosuid,nodev,noexec", drive, dir).CombinedOutput(); err != nil {
		return fmt.Errorf("mount: %w: %s", err, out)
	}
	return errors.Join(keep(dir, saved), unix.Unmount(dir, 0))
}

// check returns an error for a folder that is not a configuration. It looks at nothing that
// Weir itself tells.
func check(dir string) error {
	st, err := os.Lstat(filepath.Join(dir, "weir", "weir.yaml"))
	if err != nil || !st.Mode().IsRegular() {
		return errors.New("it has no file weir/weir.yaml")
	}
	if st, err := os.Stat(filepath.Join(dir, "authorized_keys")); err == nil && !st.Mode().IsRegular() {
		return errors.New("authorized_keys is a folder")
	}
	_, err = nameIn(dir)
	return err
}

// keep copies a folder beside link, and then lets link point to the copy: a cut leaves the
// former configuration or the new one.
func keep(from, link string) error {
	// Of a boot that was cut.
	if err := removeOthers(link); err != nil {
		return err
	}
	fresh, err := os.MkdirTemp(filepath.Dir(link), "config-")
	if err != nil {
		return err
	}
	if err = copyFolder(from, fresh); err == nil {
		err = check(fresh)
	}
	if err != nil {
		return errors.Join(err, os.RemoveAll(fresh))
	}
	temporary := link + ".new"
	_ = os.Remove(temporary)
	unix.Sync()
	if err := errors.Join(os.Symlink(filepath.Base(fresh), temporary), os.Rename(temporary, link)); err != nil {
		return err
	}
	unix.Sync()
	return removeOthers(link)
}

// removeOthers removes the configurations beside link to which it does not point.
func removeOthers(link string) error {
	used, _ := os.Readlink(link)
	list, err := filepath.Glob(filepath.Join(filepath.Dir(link), "config-*"))
	for _, dir := range list {
		if filepath.Base(dir) != used {
			err = errors.Join(err, os.RemoveAll(dir))
		}
	}
	return err
}

// copyFolder copies regular files and folders, without those that begin with a dot: file
// managers leave such on a drive.
func copyFolder(from, to string) error {
	total := int64(0)
	return filepath.WalkDir(from, func(file string, d fs.DirEntry, err error) error {
		if err != nil || file == from {
			return err
		}
		hidden := strings.HasPrefix(d.Name(), ".")
		name, _ := filepath.Rel(from, file)
		switch {
		case d.IsDir() && (hidden || d.Name() == "lost+found"):
			return fs.SkipDir
		case d.IsDir():
			return os.MkdirAll(filepath.Join(to, name), 0o755)
		case hidden || !d.Type().IsRegular():
			return nil
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		if total += info.Size(); total > maxConfig {
			return fmt.Errorf("more than %d MiB of files", maxConfig>>20)
		}
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(to, name), text, 0o600)
	})
}
