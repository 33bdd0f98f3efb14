package lastknown

import (
	"bytes"
	"encoding/json"
	"fmt"
	"time"

	"github.com/weirlb/weir/conntrack/statefile"
)

// SeenSuffix is appended to the name of the state's file. The file of that name has the
// time at which the state was last known to be the cluster's.
const SeenSuffix = ".seen"

// seen are the contents of that file.
type seen struct {
	Sum  []byte    `json:"sha256"` // of the state that is meant
	Time time.Time `json:"seen"`
}

func writeSeen(path string, sum []byte, at time.Time) error {
	data, err := json.Marshal(seen{sum, at.UTC()})
	if err == nil {
		err = replace(path+SeenSuffix, append(data, '\n'))
	}
	if err != nil {
		return fmt.Errorf("last known state: %w", err)
	}
	return nil
}

// readSeen returns zero where the file is missing, damaged, not trusted, or of another state.
func readSeen(path string, sum []byte) time.Time {
	const limit = 4096
	data, err := statefile.Read(path+SeenSuffix, limit)
	if err != nil {
		return time.Time{}
	}
	var s seen
	if json.Unmarshal(data, &s) != nil || !bytes.Equal(s.Sum, sum) {
		return time.Time{}
	}
	return s.Time
}
