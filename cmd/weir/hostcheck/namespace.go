package hostcheck

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// SameNetwork is an error where process pid of Weir runs in another network namespace: interfaces, rules and
// routes would be those of another machine than its status is about. The error says how to run a command there.
func SameNetwork(pid int, command string) error {
	if CommandLine(pid) == nil {
		return nil
	}
	return sameNetwork("/proc", "/run/netns", pid, command)
}

// sameNetwork is SameNetwork. proc and named are /proc and the directory of the namespaces that `ip netns`
// has named.
func sameNetwork(proc, named string, pid int, command string) error {
	path := filepath.Join(proc, fmt.Sprint(pid), "ns/net")
	own, err := os.Stat(filepath.Join(proc, "self/ns/net"))
	if err != nil {
		return nil // a machine that cannot tell has no other
	}
	of, err := os.Stat(path)
	if err != nil || os.SameFile(own, of) {
		return nil
	}
	enter := "nsenter --net=" + path
	entries, _ := os.ReadDir(named)
	for _, e := range entries {
		if info, err := os.Stat(filepath.Join(named, e.Name())); err == nil && os.SameFile(info, of) {
			enter = "ip netns exec " + e.Name()
			break
		}
	}
	return fmt.Errorf("process %d of Weir runs in another network namespace than this command: run it there, by %s %s", pid, enter, command)
}

// CommandLine is that of a process of weir run, nil where the number is another process's: the
// status has the number in the PID namespace of the daemon.
func CommandLine(pid int) []string {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	args := strings.Split(strings.TrimSuffix(string(data), "\x00"), "\x00")
	if err != nil || len(args) < 2 || args[1] != "run" {
		return nil
	}
	return args
}
