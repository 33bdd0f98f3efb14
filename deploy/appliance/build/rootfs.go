package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/weirlb/weir/deploy/appliance/bundle"
)

// suite has Linux 6.12: the first long-term kernel with all of README's table that a stable
// Debian has.
const suite = "trixie"

const keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"

// packages of the root, beside the essential ones and their dependencies.
var packages = []string{
	"systemd", "systemd-sysv", "udev", "kmod", // start, devices, modules
	"linux-image-amd64", "initramfs-tools", "zstd",
	"systemd-boot-efi",                      // the loader: copied to the boot partition
	"systemd-resolved", "systemd-timesyncd", // names and time, for API servers
	"openssh-server",
	"e2fsprogs", "dosfstools", // checks of the state partition and of the boot partition
	"iproute2", "ethtool", "tcpdump", "less", // of an operator who has logged in
}

// rootFileSystem makes the root, and takes kernel and initramfs out of it.
func (m *maker) rootFileSystem() error {
	files := filepath.Join(m.root, "deploy", "appliance")
	root := m.at("root")
	args := []string{
		"--mode=root", "--variant=essential", "--format=directory",
		"--include=" + strings.Join(packages, ","),
		// Documentation but for licences, and translations, are not needed.
		"--dpkgopt=path-exclude=/usr/share/doc/*", "--dpkgopt=path-include=/usr/share/doc/*/copyright",
		"--dpkgopt=path-exclude=/usr/share/man/*", "--dpkgopt=path-exclude=/usr/share/locale/*",
		"--aptopt=Acquire::Languages \"none\"",
		// The initramfs is made while the kernel is installed.
		fmt.Sprintf(`--setup-hook=cp -r %s/. "$1/"`, filepath.Join(files, "setup")),
		fmt.Sprintf(`--customize-hook=%s "$1" %s %s %s %s`, filepath.Join(files, "customize"),
			filepath.Join(files, "root"), m.at("agent"), m.deb, m.version),
	}
	component := "main"
	if m.packages != "" {
		args = append(args, "--include="+m.packages)
		component += " non-free-firmware"
	}
	args = append(args, suite, root)
	for _, s := range []string{"debian " + suite, "debian " + suite + "-updates", "debian-security " + suite + "-security"} {
		args = append(args, fmt.Sprintf("deb [signed-by=%s] http://deb.debian.org/%s %s", keyring, s, component))
	}
	if err := command("mmdebstrap", args...); err != nil {
		return err
	}
	if err := os.Mkdir(m.at("slot"), 0o755); err != nil {
		return err
	}
	for pattern, name := range map[string]string{"vmlinuz-*": bundle.Kernel, "initrd.img-*": bundle.Initramfs} {
		found, err := filepath.Glob(filepath.Join(root, "boot", pattern))
		if err != nil || len(found) != 1 {
			return fmt.Errorf("the root has %d files boot/%s (%v)", len(found), pattern, err)
		}
		if err := os.Rename(found[0], m.at("slot", name)); err != nil {
			return err
		}
	}
	return nil
}

// squash makes the image of the root. Folders that only an installation needs stay out.
func (m *maker) squash() error {
	return command("mksquashfs", m.at("root"), m.at("slot", bundle.Root), "-noappend", "-quiet", "-no-progress",
		"-comp", "zstd", "-Xcompression-level", "9", "-wildcards", "-e", "boot/*", "vmlinuz*", "initrd.img*",
		"var/lib/apt/*", "var/cache/*", "dev/*", "tmp/*", "run/*")
}
