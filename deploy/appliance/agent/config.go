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
	// sourceFile tells where the configuration is from.
	sourceFile = runFolder + "/source"
)

// driveWithin is how long a drive may take to appear: USB needs seconds. Without an earlier
// configuration nothing is served meanwhile. maxConfig bounds the files of a drive, which are
// kept in memory.
const (
	driveWithin      = 10 * time.Second
	firstDriveWithin = 30 * time.Second
	maxConfig        = 32 << 20
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
	if err := hostKey(stateFolder); err != nil {
		fmt.Fprintln(os.Stderr, "appliance: nobody can log in:", err) // but Weir can serve
	}
	source, err := configuration()
	if err != nil {
		source = "none: " + err.Error() // the console has it: without keys nobody can read the journal
	}
	return errors.Join(err, os.WriteFile(sourceFile, []byte(source), 0o644))
}

// configuration applies a configuration, and tells where it is from.
func configuration() (source string, err error) {
	s := state().boot()
	limit := driveWithin
	if s.inUse() == "" {
		limit = firstDriveWithin
	}
	var take func() error
	if waitFor(drive, limit) {
		take = func() error { return fromDrive(s) }
	}
	dir, source, err := s.choose(take)
	if err != nil {
		return "", err
	}
	return source, apply(dir)
}

// state is the store on the state partition.
func state() store {
	_, err := os.Stat(stateFile)
	return store{dir: stateFolder, check: check, gone: err == nil}
}

// choose returns the folder of the configuration in use, after take has replaced it from a
// drive, if there is one, and tells where it is from.
func (s store) choose(take func() error) (dir, source string, err error) {
	source = "an earlier boot"
	if take == nil && s.left.why != "" {
		source += ": Weir did not serve with that of the drive: " + s.left.why
	}
	if take != nil {
		if err = take(); err == nil {
			source = "the drive"
		} else {
			err = fmt.Errorf("the drive WEIR-CONFIG cannot be used: %w", err)
			source += ": " + err.Error()
		}
	}
	switch used := s.inUse(); {
	case used != "":
		return s.at(used), source, nil
	case err != nil:
		return "", "", err
	}
	return "", "", errors.New("attach a drive labelled WEIR-CONFIG and reboot")
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
func fromDrive(s store) error {
	dir := runFolder + "/drive"
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if out, err := exec.Command("mount", "-t", "vfat,iso9660,ext4", "-o", "ro,nosuid,nodev,noexec", drive, dir).CombinedOutput(); err != nil {
		return fmt.Errorf("mount: %w: %s", err, out)
	}
	return errors.Join(s.keep(dir), unix.Unmount(dir, 0))
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
