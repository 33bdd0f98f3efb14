package hostcheck

import (
	"cmp"
	"errors"
	"fmt"
	"math/bits"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// neighborTable is a table of the kernel's: the network namespaces share it, and the limit.
type neighborTable struct {
	name   string
	family int
	stat   string // the file in /proc/net/stat
	sysctl string // the directory of the limits
}

var neighborTables = []neighborTable{
	{"IPv4", unix.AF_INET, "arp_cache", "net/ipv4/neigh/default"},
	{"IPv6", unix.AF_INET6, "ndisc_cache", "net/ipv6/neigh/default"},
}

// checkNeighbors looks at the room in the kernel's neighbor tables: without any, packets to a next
// hop that is not in the table are lost, and the kernel says so in its log alone.
func checkNeighbors(fs *findings) {
	for i := range neighborTables {
		t := &neighborTables[i]
		limit, ok := t.limit()
		if !ok { // network namespaces but the first have none, nor has a kernel without IPv6
			continue
		}
		entries, overflows, err := t.fill()
		if err != nil {
			fs.add(Note, t.subject(), "%v", err)
			continue
		}
		t.judge(fs, entries, limit, overflows)
	}
}

func (t *neighborTable) subject() string { return t.name + " neighbors" }

// judge notes a table that is nearly full: more than four fifths.
func (t *neighborTable) judge(fs *findings, entries, limit, overflows int) {
	before := ""
	if overflows > 0 {
		before = fmt.Sprintf("; since the boot %d neighbors have found no room", overflows)
	}
	if entries*5 <= limit*4 {
		fs.add(OK, t.subject(), "%d, room for %d%s", entries, limit, before)
		return
	}
	fs.add(Note, t.subject(), "%d, room for %d: beyond that, packets to new next hops are lost%s", entries, limit, before)
	enough := 1 << bits.Len(uint(4*max(entries, limit)-1))
	dir := strings.ReplaceAll(t.sysctl, "/", ".")
	fs.mend("sysctl -w %s.gc_thresh3=%d %s.gc_thresh2=%d", dir, enough, dir, enough/2)
}

// limit is the number of entries for which there is room.
func (t *neighborTable) limit() (int, bool) {
	dir := cmp.Or(os.Getenv("WEIR_PROC_SYS"), "/proc/sys")
	text, err := os.ReadFile(filepath.Join(dir, t.sysctl, "gc_thresh3"))
	n, atoi := strconv.Atoi(strings.TrimSpace(string(text)))
	return n, err == nil && atoi == nil
}

// fill is the number of entries that count against the limit, and how often there was no room. The
// kernel tells the number of all entries, of all network namespaces. Permanent entries and those of
// routing daemons do not count: those of this namespace are left out. Where the kernel does not
// tell, the others of this namespace are counted.
func (t *neighborTable) fill() (entries, overflows int, err error) {
	list, err := netlink.NeighList(0, t.family)
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return 0, 0, err
	}
	kept := 0
	for i := range list {
		if list[i].State&netlink.NUD_PERMANENT != 0 || list[i].Flags&netlink.NTF_EXT_LEARNED != 0 {
			kept++
		}
	}
	// thread-self: /proc/net would be that of the first thread.
	text, err := os.ReadFile(filepath.Join("/proc/thread-self/net/stat", t.stat))
	if err != nil {
		return len(list) - kept, 0, nil
	}
	all, overflows := neighborStat(string(text))
	return max(0, all-kept), overflows, nil
}

// neighborStat reads a file of /proc/net/stat: a line of names, and a line per CPU, in hexadecimal
// numbers. The number of entries is the same in each line.
func neighborStat(text string) (entries, overflows int) {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	names := strings.Fields(lines[0])
	for _, line := range lines[1:] {
		for i, field := range strings.Fields(line) {
			n, err := strconv.ParseUint(field, 16, 31)
			switch {
			case err != nil || i >= len(names):
			case names[i] == "entries":
				entries = int(n)
			case names[i] == "table_fulls":
				overflows += int(n)
			}
		}
	}
	return entries, overflows
}
