// Package machine describes the machine of a measurement.
package machine

import (
	"bufio"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strings"

	"golang.org/x/sys/unix"
)

// Machine has the properties that a figure depends on besides the code.
type Machine struct {
	CPU      string `json:"cpu"`
	CPUs     int    `json:"cpus"` // that this process may use
	MemoryMB int    `json:"memoryMB"`
	Kernel   string `json:"kernel"`
	Go       string `json:"go"`
	Revision string `json:"revision,omitempty"` // of the source, with -dirty where it was changed
}

// Describe describes this machine. A property that cannot be read is left empty.
func Describe() Machine {
	m := Machine{CPU: cpuModel("/proc/cpuinfo"), CPUs: runtime.NumCPU(), Go: runtime.Version(), Revision: revision()}
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) == nil {
		m.MemoryMB = int(uint64(info.Totalram) * uint64(info.Unit) >> 20)
	}
	var name unix.Utsname
	if unix.Uname(&name) == nil {
		m.Kernel = unix.ByteSliceToString(name.Release[:])
	}
	return m
}

// String formats the machine as a line.
func (m Machine) String() string {
	s := fmt.Sprintf("%s, %d CPUs, %d MB, Linux %s, %s", m.CPU, m.CPUs, m.MemoryMB, m.Kernel, m.Go)
	if m.Revision != "" {
		s += ", revision " + m.Revision
	}
	return s
}

func cpuModel(path string) string {
	f, err := os.Open(path)
	if err != nil {
		return runtime.GOARCH
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		key, value, ok := strings.Cut(s.Text(), ":")
		if ok && strings.TrimSpace(key) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return runtime.GOARCH
}

func revision() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	rev, dirty := "", ""
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			rev = s.Value[:min(12, len(s.Value))]
		case "vcs.modified":
			if s.Value == "true" {
				dirty = "-dirty"
			}
		}
	}
	if rev == "" {
		return ""
	}
	return rev + dirty
}
