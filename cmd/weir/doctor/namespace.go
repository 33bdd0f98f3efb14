package doctor

import (
	"fmt"
	"os"
	"path/filepath"
)

// sameNetwork is an error where process pid runs in another network namespace: interfaces, rules and
// routes would be those of another machine than the status is about. proc and named are /proc and
// the directory of the namespaces that `ip netns` has named.
func sameNetwork(proc, named string, pid int) error {
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
	return fmt.Errorf("process %d of Weir runs in another network namespace than this command: run it there, by %s weir doctor", pid, enter)
}
