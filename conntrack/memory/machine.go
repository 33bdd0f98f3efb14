// Package memory is the memory of a table apart from its contents: how much there is, and mappings whose
// pages are there when packets need them.
package memory

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Machine finds out how much memory there is. Root is "/" but in tests.
type Machine struct{ Root string }

// Total returns the bytes of memory that this process may use: those of the
// machine, or of the tightest of its control groups.
func (m Machine) Total() (int64, error) {
	n, err := m.meminfo("MemTotal:")
	if err != nil {
		return 0, err
	}
	return min(n, m.cgroupLimit()), nil
}

// Available returns the bytes that can be had now without swapping, likewise.
func (m Machine) Available() (int64, error) {
	n, err := m.meminfo("MemAvailable:")
	if err != nil {
		return 0, err
	}
	return min(n, m.cgroupLimit()), nil
}

func (m Machine) meminfo(field string) (int64, error) {
	name := filepath.Join(m.Root, "proc/meminfo")
	b, err := os.ReadFile(name)
	if err != nil {
		return 0, fmt.Errorf("read memory size: %w", err)
	}
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) >= 2 && f[0] == field {
			kb, err := strconv.ParseInt(f[1], 10, 64)
			if err != nil {
				return 0, fmt.Errorf("%s: %s: %w", name, field, err)
			}
			return kb << 10, nil
		}
	}
	return 0, fmt.Errorf("%s has no %s", name, field)
}

const unlimited = int64(1) << 62

// cgroupLimit returns the tightest memory limit of this process's control groups
// (v2, and the memory controller of v1) up to the root. A file that cannot be read does not
// limit.
func (m Machine) cgroupLimit() int64 {
	b, err := os.ReadFile(filepath.Join(m.Root, "proc/self/cgroup"))
	if err != nil {
		return unlimited
	}
	limit := unlimited
	for line := range strings.Lines(string(b)) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(f) != 3 {
			continue
		}
		switch {
		case f[0] == "0" && f[1] == "":
			limit = min(limit, m.tightest("sys/fs/cgroup", f[2], "memory.max"))
		case strings.Contains(","+f[1]+",", ",memory,"):
			limit = min(limit, m.tightest("sys/fs/cgroup/memory", f[2], "memory.limit_in_bytes"))
		}
	}
	return limit
}

func (m Machine) tightest(mount, group, file string) int64 {
	limit := unlimited
	for {
		if b, err := os.ReadFile(filepath.Join(m.Root, mount, group, file)); err == nil {
			if n, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64); err == nil && n > 0 {
				limit = min(limit, n)
			}
		}
		if group == "/" || group == "." || group == "" {
			return limit
		}
		group = filepath.Dir(group)
	}
}
