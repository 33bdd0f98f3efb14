// Package hostcheck checks a machine before Weir runs on it with a given
// configuration: privileges, locked memory, interfaces, kernel features,
// manifests. It changes nothing.
package hostcheck

import (
	"fmt"
	"os"

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
	Mend    string // the command or setting that mends it, "" if there is none
}

// String is "SUBJECT: TEXT: MEND".
func (f Finding) String() string { return f.Subject + ": " + f.Line() }

// Line is "TEXT: MEND".
func (f Finding) Line() string {
	if f.Mend == "" {
		return f.Text
	}
	return f.Text + ": " + f.Mend
}

// findings collects.
type findings []Finding

func (fs *findings) add(l Level, subject, format string, args ...any) {
	*fs = append(*fs, Finding{Level: l, Subject: subject, Text: fmt.Sprintf(format, args...)})
}

// mend adds the command or setting that mends the last finding.
func (fs *findings) mend(format string, args ...any) {
	(*fs)[len(*fs)-1].Mend = fmt.Sprintf(format, args...)
}

// Check looks at everything. The configuration need not be valid.
func Check(cfg *config.Configuration) []Finding {
	var fs findings
	checkPrivileges(&fs)
	checkStart(&fs, cfg)
	checkLockedMemory(&fs, cfg, os.Getpid())
	checkSysctls(&fs, cfg)
	checkKernel(&fs)
	checkInterfaces(&fs, cfg)
	checkSNATPorts(&fs, cfg)
	checkPrograms(&fs, cfg)
	checkNeighbors(&fs)
	checkForwarding(&fs, cfg)
	checkRules(&fs)
	checkLinks(&fs, cfg)
	checkSecretFiles(&fs, cfg)
	checkManifests(&fs, cfg)
	checkCluster(&fs, cfg)
	return fs
}

// CheckBeside looks at those parts of the machine that may have changed since a process of
// Weir was started. pid is the process, 0 if it is not known.
func CheckBeside(cfg *config.Configuration, pid int) []Finding {
	var fs findings
	checkLockedMemory(&fs, cfg, pid)
	checkInterfaces(&fs, cfg)
	checkPrograms(&fs, cfg)
	checkNeighbors(&fs)
	checkLinks(&fs, cfg)
	checkSecretFiles(&fs, cfg)
	return fs
}
