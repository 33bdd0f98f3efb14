// Package hostcheck checks a machine before Weir runs on it with a given
// configuration: privileges, locked memory, interfaces, kernel features,
// manifests. It changes nothing.
package hostcheck

import (
	"fmt"

	"github.com/weirlb/weir/cmd/weir/config"
)

// Level is the meaning of a finding for `weir run`.
type Level uint8

// Levels.
const (
	OK    Level = iota
	Note        // it runs, but something is worth knowing
	Wrong       // it would not start, or not as configured
)

// Finding is the result of a check.
type Finding struct {
	Level   Level
	Subject string // "interface eth0"
	Text    string
}

// String is "SUBJECT: TEXT".
func (f Finding) String() string { return f.Subject + ": " + f.Text }

// findings collects.
type findings []Finding

func (fs *findings) add(l Level, subject, format string, args ...any) {
	*fs = append(*fs, Finding{l, subject, fmt.Sprintf(format, args...)})
}

// Check looks at everything. The configuration need not be valid.
func Check(cfg *config.Configuration) []Finding {
	var fs findings
	checkPrivileges(&fs)
	checkLockedMemory(&fs, cfg)
	checkSysctls(&fs, cfg)
	checkKernel(&fs)
	checkInterfaces(&fs, cfg)
	checkForwarding(&fs, cfg)
	checkManifests(&fs, cfg)
	checkCluster(&fs, cfg)
	return fs
}
