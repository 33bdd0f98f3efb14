package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/weirlb/weir/deploy/appliance/bundle"
	"github.com/weirlb/weir/deploy/appliance/slot"
)

const mib = 1 << 20

// Sizes of the partitions. A slot has room for a root twice as large as that of the first
// release; the boot partition for two kernels.
const (
	bootSize  = 256 * mib
	slotSize  = 1024 * mib
	stateSize = 256 * mib
)

// Types of partitions (UEFI 2.10, section 5.3.3; the Discoverable Partitions Specification).
const (
	typeBoot  = "C12A7328-F81F-11D2-BA4B-00A0C93EC93B"
	typeLinux = "0FC63DAF-8483-4772-8E79-3D69D8477DE4"
)

// partition is a part of the disk, with the image of its content.
type partition struct {
	name, kind string
	size       int64
	image      string // "": empty
}

// bootPartition makes the EFI system partition: the loader, and slot a.
func (m *maker) bootPartition() error {
	tree := m.at("boot")
	efi := filepath.Join(tree, "EFI", "BOOT")
	to := filepath.Join(tree, slot.Slot("a").Folder())
	if err := errors.Join(os.MkdirAll(efi, 0o755), os.MkdirAll(to, 0o755),
		os.MkdirAll(filepath.Join(tree, "loader", "entries"), 0o755)); err != nil {
		return err
	}
	// The name that firmware takes without a variable of its own (UEFI 2.10, section 3.5.1.1).
	err := errors.Join(
		copyFile(m.at("root", "usr/lib/systemd/boot/efi/systemd-bootx64.efi"), filepath.Join(efi, "BOOTX64.EFI")),
		// The menu waits for a moment, for an operator who wants the other slot.
		os.WriteFile(filepath.Join(tree, "loader", "loader.conf"), []byte("timeout 1\neditor no\n"), 0o644),
		slot.Entries{Root: tree}.Add(slot.Entry{Slot: "a", Version: m.version, Options: kernelOptions}))
	for _, name := range []string{bundle.Kernel, bundle.Initramfs} {
		err = errors.Join(err, copyFile(m.at("slot", name), filepath.Join(to, name)))
	}
	if err != nil {
		return err
	}
	image := m.at("esp.img")
	if err := command("mkfs.vfat", "-F", "32", "-n", "WEIR-BOOT", "-C", image, fmt.Sprint(bootSize/1024)); err != nil {
		return err
	}
	entries, err := filepath.Glob(filepath.Join(tree, "*"))
	if err != nil {
		return err
	}
	return command("mcopy", append([]string{"-s", "-i", image}, append(entries, "::")...)...)
}

// disk makes the image of the disk. Holes of it need no room.
func (m *maker) disk() error {
	state := m.at("state.img")
	if err := sparse(state, stateSize); err != nil {
		return err
	}
	if err := command("mkfs.ext4", "-q", "-L", "weir-state", state); err != nil {
		return err
	}
	root := m.at("slot", bundle.Root)
	st, err := os.Stat(root)
	if err != nil {
		return err
	}
	if st.Size() > slotSize {
		return fmt.Errorf("the root has %d MiB, a slot %d", st.Size()/mib, slotSize/mib)
	}
	image := filepath.Join(m.out, "weir-appliance.img")
	return write(image, []partition{
		{"weir-esp", typeBoot, bootSize, m.at("esp.img")},
		{slot.Slot("a").Partition(), typeLinux, slotSize, root},
		{slot.Slot("b").Partition(), typeLinux, slotSize, ""},
		{"weir-state", typeLinux, stateSize, state},
	})
}

// write writes the partition table and the partitions, each at a MiB.
func write(image string, partitions []partition) error {
	_ = os.Remove(image)
	offset := int64(mib)
	var table strings.Builder
	table.WriteString("label: gpt\nunit: sectors\n")
	for _, p := range partitions {
		fmt.Fprintf(&table, "start=%d, size=%d, type=%s, name=%s\n", offset/512, p.size/512, p.kind, p.name)
		offset += p.size
	}
	if err := sparse(image, offset+mib); err != nil { // the second table is at the end
		return err
	}
	cmd := exec.Command("sfdisk", "--quiet", "--no-reread", "--no-tell-kernel", image)
	cmd.Stdin = strings.NewReader(table.String())
	if err := run(cmd); err != nil {
		return err
	}
	offset = mib
	for _, p := range partitions {
		if p.image != "" {
			// dd leaves out zeros.
			if err := command("dd", "if="+p.image, "of="+image, "bs=1M", fmt.Sprintf("seek=%d", offset/mib),
				"conv=notrunc,sparse", "status=none"); err != nil {
				return err
			}
		}
		offset += p.size
	}
	return nil
}

func sparse(file string, size int64) error {
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	return errors.Join(f.Truncate(size), f.Close())
}

func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.Create(to)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}
