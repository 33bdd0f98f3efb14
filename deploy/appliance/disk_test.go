package appliance

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"testing"
)

// partition is a part of the disk, in bytes.
type partition struct{ start, size int64 }

// partition returns a partition of the disk by its name.
func (l *lab) partition(t *testing.T, name string) partition {
	t.Helper()
	out, err := exec.Command("sfdisk", "--json", l.at("disk")).Output()
	must(t, err)
	var disk struct {
		PartitionTable struct {
			Partitions []struct {
				Start, Size int64
				Name        string
			}
		}
	}
	must(t, json.Unmarshal(out, &disk))
	for _, p := range disk.PartitionTable.Partitions {
		if p.Name == name {
			return partition{p.Start * 512, p.Size * 512}
		}
	}
	t.Fatalf("the disk has no partition %s", name)
	return partition{}
}

// wipe writes zeros over the first bytes of a partition of the disk.
func (l *lab) wipe(t *testing.T, name string, length int64) {
	t.Helper()
	p := l.partition(t, name)
	run(t, "fallocate", "--zero-range", "--offset", fmt.Sprint(p.start), "--length", fmt.Sprint(min(length, p.size)), l.at("disk"))
}
