package hostveth

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// sysctls is a directory of sysctls, ending in a slash. /proc/sys/net, also
// where it is mounted elsewhere, shows the network namespace of whoever reads it.
type sysctls string

// newSysctls: "" is /proc/sys.
func newSysctls(dir string) sysctls {
	if dir == "" {
		dir = "/proc/sys"
	}
	return sysctls(dir + "/")
}

func (s sysctls) read(key string) (string, error) {
	b, err := os.ReadFile(string(s) + key)
	if err != nil {
		return "", fmt.Errorf("read sysctl: %w", err)
	}
	return strings.TrimSpace(string(b)), nil
}

func (s sysctls) list(dir string) ([]string, error) {
	entries, err := os.ReadDir(string(s) + dir)
	if err != nil {
		return nil, fmt.Errorf("list sysctls: %w", err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names, nil
}

func (s sysctls) write(key, value string) error {
	if old, err := s.read(key); err == nil && old == value {
		return nil
	}
	f, err := os.OpenFile(string(s)+key, os.O_WRONLY, 0)
	if errors.Is(err, unix.EROFS) {
		return fmt.Errorf("set sysctl: %w: in a container mount the host's /proc/sys/net at /host/proc/sys/net and set WEIR_PROC_SYS=/host/proc/sys", err)
	}
	if err != nil {
		return fmt.Errorf("set sysctl: %w", err)
	}
	_, err = f.WriteString(value)
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("set sysctl %s to %s: %w", key, value, err)
	}
	return nil
}
