package statefile

import (
	"errors"
	"os"
	"sync"
)

// File is a kind of file, as a label of a metric.
type File string

// Files that a start trusts.
const (
	FlowTable    File = "flow-table"
	ClusterState File = "cluster-state"
	Names        File = "names"
	Sysctls      File = "sysctls"
	Offloads     File = "offloads"
)

// Cause is why a file was not used, as a label of a metric.
type Cause string

// Causes.
const (
	Layout    Cause = "layout"    // of another version, as after a downgrade
	Damaged   Cause = "damaged"   // or none of Weir's
	Reboot    Cause = "reboot"    // made before the last boot
	Size      Cause = "size"      // no memory for the new size
	Untrusted Cause = "untrusted" // ErrUntrusted
	Other     Cause = "other"     // of another cluster
)

// Files and Causes are all of them, in the order of the reference.
var (
	Files  = []File{FlowTable, ClusterState, Names, Sysctls, Offloads}
	Causes = []Cause{Layout, Damaged, Reboot, Size, Untrusted, Other}
)

var (
	mu     sync.Mutex
	counts = map[File]map[Cause]uint64{}
)

// SetAside renames a file that is not used, and counts it. The file itself is not touched: it may
// be a link.
func SetAside(file File, why Cause, path, to string) error {
	if err := os.Rename(path, to); err != nil {
		return err
	}
	Count(file, why)
	return nil
}

// Count counts a file that is not used.
func Count(file File, why Cause) {
	mu.Lock()
	defer mu.Unlock()
	if counts[file] == nil {
		counts[file] = map[Cause]uint64{}
	}
	counts[file][why]++
}

// Counted is how many files of a kind were not used since the start of the process.
func Counted(file File, why Cause) uint64 {
	mu.Lock()
	defer mu.Unlock()
	return counts[file][why]
}

// CauseOf is Untrusted for such an error, else Damaged.
func CauseOf(err error) Cause {
	if errors.Is(err, ErrUntrusted) {
		return Untrusted
	}
	return Damaged
}
