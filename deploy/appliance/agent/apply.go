package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// apply puts a configuration where programs read it. The root is read-only, so each place is
// in memory.
func apply(dir string) error {
	if err := overlay(weirFolder); err != nil {
		return err
	}
	if err := copyFolder(filepath.Join(dir, "weir"), weirFolder); err != nil {
		return err
	}
	return errors.Join(applyNetwork(dir, networkFolder, networkUser), applyKeys(dir), applyName(dir))
}

// overlay mounts a folder in memory. Weir's has secrets, such as a kubeconfig.
func overlay(dir string) error {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return fmt.Errorf("%s: %w", dir, err)
	}
	if st.Type == unix.TMPFS_MAGIC {
		return nil
	}
	return unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=0755,size=64m")
}

// networkFolder has the configuration of systemd-networkd, which reads it as a user of its own.
const (
	networkFolder = "/run/systemd/network"
	networkUser   = "systemd-network"
)

// applyNetwork copies systemd.network(5) and systemd.netdev(5) files. These may have keys, as of
// WireGuard, so that systemd-networkd alone may read them.
func applyNetwork(dir, to, group string) error {
	if err := os.MkdirAll(to, 0o755); err != nil {
		return err
	}
	g, err := user.LookupGroup(group)
	if err != nil {
		return err
	}
	gid, err := strconv.Atoi(g.Gid)
	if err != nil {
		return err
	}
	for _, pattern := range []string{"*.network", "*.netdev"} {
		files, err := filepath.Glob(filepath.Join(dir, "network", pattern))
		if err != nil {
			return err
		}
		for _, f := range files {
			if st, err := os.Stat(f); err == nil && st.IsDir() {
				continue
			}
			text, err := os.ReadFile(f)
			if err != nil {
				return err
			}
			name := filepath.Join(to, filepath.Base(f))
			if err := os.WriteFile(name, text, 0o600); err != nil {
				return err
			}
			if err := errors.Join(os.Chown(name, 0, gid), os.Chmod(name, 0o640)); err != nil {
				return err
			}
		}
	}
	return nil
}

// applyKeys admits the owners of SSH keys as root. Without keys nobody can log in.
func applyKeys(dir string) error {
	text, err := os.ReadFile(filepath.Join(dir, "authorized_keys"))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return errors.Join(err, os.WriteFile(runFolder+"/authorized_keys", text, 0o644))
}

var hostName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?$`)

// nameIn is the name of the machine that a configuration has, "" if it has none.
func nameIn(dir string) (string, error) {
	text, err := os.ReadFile(filepath.Join(dir, "hostname"))
	if errors.Is(err, os.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	name := strings.TrimSpace(string(text))
	if !hostName.MatchString(name) {
		return "", fmt.Errorf("hostname: %q is no name of a host", name)
	}
	return name, nil
}

func applyName(dir string) error {
	name, err := nameIn(dir)
	if err != nil || name == "" {
		return err
	}
	return unix.Sethostname([]byte(name))
}

var wholeKey = regexp.MustCompile(`(?s)^-----BEGIN OPENSSH PRIVATE KEY-----\n[A-Za-z0-9+/=\n]+-----END OPENSSH PRIVATE KEY-----\s*$`)

// hostKey makes the key of the SSH server, once: all appliances of a release have the same
// root, and must not have the same key. A key that a mend of the file system has left in part
// is replaced, since the server would not start with it.
func hostKey(dir string) error {
	file := filepath.Join(dir, "ssh_host_ed25519_key")
	if text, err := os.ReadFile(file); err == nil && wholeKey.Match(text) {
		return os.Chmod(file, 0o600)
	}
	temporary := file + ".new"
	_, _ = os.Remove(temporary), os.Remove(temporary+".pub")
	if out, err := exec.Command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", temporary).CombinedOutput(); err != nil {
		return fmt.Errorf("ssh-keygen: %w: %s", err, out)
	}
	unix.Sync()
	err := errors.Join(os.Rename(temporary+".pub", file+".pub"), os.Rename(temporary, file))
	unix.Sync() // those who log in remember the key: a cut must not have the next boot make another
	return err
}
