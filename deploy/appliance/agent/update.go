package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/deploy/appliance/bundle"
	"github.com/weirlb/weir/deploy/appliance/slot"
)

// reservedForEntry are bytes of the boot partition that an update leaves for the slot's entry, and
// for the part of the last cluster that a file does not fill.
const reservedForEntry = 256 << 10

// update installs a bundle into the slot that does not run, and boots it on trial. The entry
// of the slot goes before its files and comes after them, so that a cut in between boots the
// running slot.
func update(r io.Reader, stay bool) error {
	e, _, err := trial()
	if err != nil {
		return err
	}
	if e.Trial {
		// The other slot is the fallback until then.
		return errors.New("the running release is on trial: update when it has been confirmed")
	}
	target := e.Slot.Other()
	var version string
	err = withEntries(true, func(b slot.Entries) error {
		version, err = install(b, target, byPartition+target.Partition(), r)
		return err
	})
	if err != nil {
		return err
	}
	fmt.Printf("slot %s has release %s\n", target, version)
	if stay {
		return nil
	}
	return reboot()
}

// install writes a bundle into a slot, whose root is on a partition, and adds the entry. A
// stream that does not begin as a bundle which fits leaves the slot, which is the fallback.
func install(b slot.Entries, s slot.Slot, partition string, r io.Reader) (version string, err error) {
	root, room, err := openPartition(partition)
	if err != nil {
		return "", err
	}
	defer root.Close()
	boot, err := roomForBoot(b.Root, filepath.Join(b.Root, s.Folder()))
	if err != nil {
		return "", err
	}
	begun := false
	m, err := bundle.Read(r, bundle.Machine{Architecture: runtime.GOARCH, Room: room, Boot: boot}, func(name string) (io.WriteCloser, error) {
		if !begun {
			if err := b.Remove(s); err != nil {
				return nil, err
			}
			// Their clusters are free before the new files take any.
			for _, old := range []string{bundle.Kernel, bundle.Initramfs} {
				_ = os.Remove(filepath.Join(b.Root, s.Folder(), old))
			}
			begun = true
		}
		if name == bundle.Root {
			return &synced{root}, nil
		}
		dir := filepath.Join(b.Root, s.Folder())
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, err
		}
		f, err := os.Create(filepath.Join(dir, name))
		return &synced{f}, err
	})
	if err != nil {
		return "", err
	}
	return m.Version, b.Add(slot.Entry{Slot: s, Version: m.Version, Options: m.Options, Trial: true, Left: slot.Tries})
}

// openPartition opens a partition that is not in use, and returns its bytes.
func openPartition(file string) (f *os.File, room int64, err error) {
	if f, err = os.OpenFile(file, os.O_WRONLY|unix.O_EXCL, 0); err != nil {
		return nil, 0, err
	}
	room, err = f.Seek(0, io.SeekEnd)
	if _, seek := f.Seek(0, io.SeekStart); err != nil || seek != nil {
		return nil, 0, errors.Join(err, seek, f.Close())
	}
	return f, room, nil
}

// roomForBoot returns the bytes that the boot partition has for a slot's kernel and initramfs:
// those that are free, and those of the former files, which are overwritten.
func roomForBoot(root, folder string) (int64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(root, &st); err != nil {
		return 0, fmt.Errorf("%s: %w", root, err)
	}
	room := int64(st.Bavail) * st.Bsize
	for _, name := range []string{bundle.Kernel, bundle.Initramfs} {
		if f, err := os.Stat(filepath.Join(folder, name)); err == nil {
			room += f.Size()
		}
	}
	return room - reservedForEntry, nil
}

// synced is a file that is on the disk when it has been closed.
type synced struct{ *os.File }

func (s *synced) Close() error { return errors.Join(s.Sync(), s.File.Close()) }
