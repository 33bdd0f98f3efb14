package api

import (
	"time"

	"github.com/weirlb/weir/conntrack/statefile"
)

// StateFile is a file that a start trusts.
type StateFile struct {
	// Name is flow-table, cluster-state, names, sysctls or offloads.
	Name string `json:"name"`
	// NotUsed counts, by cause, the files that this process found and did not use: layout (of
	// another version), damaged, reboot (made before the last boot), size (no memory for the new
	// size), untrusted (another user could have written it), other (of another cluster).
	NotUsed map[string]uint64 `json:"notUsed"`
	// Bytes is the size of the last known state, and GoodAt when it was last known to be the
	// state of the cluster. They are absent before this process has saved, and of other files.
	Bytes  int64      `json:"bytes,omitempty"`
	GoodAt *time.Time `json:"goodAt,omitempty"`
}

// StateFiles are the files of this process.
func StateFiles() []StateFile {
	var out []StateFile
	for _, f := range statefile.Files {
		s := StateFile{Name: string(f), NotUsed: map[string]uint64{}}
		for _, why := range statefile.Causes {
			s.NotUsed[string(why)] = statefile.Counted(f, why)
		}
		out = append(out, s)
	}
	return out
}
