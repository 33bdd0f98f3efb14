package conntrack

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

const (
	// autoShare is the part of memory that MaxFlows 0 may take: 1/20.
	autoShare = 20
	// autoMost is the most that MaxFlows 0 chooses, about 2.1 GB.
	autoMost = 10_000_000
	minFlows = 1024
	// mostFlows keeps entry numbers within a Ref.
	mostFlows = 1 << 30
)

// memory finds out how much there is. root is "/" but in tests.
type memory struct{ root string }

// total returns the bytes of memory that this process may use: those of the
// machine, or of the tightest of its control groups.
func (m memory) total() (int64, error) {
	n, err := m.meminfo("MemTotal:")
	if err != nil {
		return 0, err
	}
	return min(n, m.cgroupLimit()), nil
}

// available returns the bytes that can be had now without swapping, likewise.
func (m memory) available() (int64, error) {
	n, err := m.meminfo("MemAvailable:")
	if err != nil {
		return 0, err
	}
	return min(n, m.cgroupLimit()), nil
}

func (m memory) meminfo(field string) (int64, error) {
	name := filepath.Join(m.root, "proc/meminfo")
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
func (m memory) cgroupLimit() int64 {
	b, err := os.ReadFile(filepath.Join(m.root, "proc/self/cgroup"))
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

func (m memory) tightest(mount, group, file string) int64 {
	limit := unlimited
	for {
		if b, err := os.ReadFile(filepath.Join(m.root, mount, group, file)); err == nil {
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

// autoFlows returns how many connections fit into autoShare of memory beside the
// counters of maxEndpoints.
func (m memory) autoFlows(maxEndpoints int64) (int64, error) {
	total, err := m.total()
	if err != nil {
		return 0, fmt.Errorf("choose the number of flows: %w", err)
	}
	fixed := headerSize + cursorCount*cursorSize + 2*hugePage + 8*(maxEndpoints+2*maxServices)
	return min(max((total/autoShare-fixed)/bytesPerFlow, minFlows), autoMost), nil
}
