package conntrack

import (
	"bytes"
	"reflect"

	"github.com/weirlb/weir/conntrack/tcp"
)

// Shape is where a reader outside of the process finds the parts of the table: a program in
// the kernel that has the same memory.
type Shape struct {
	Seed    [4]uint64 // of Hash
	Buckets uint32    // of the index
	// Conns and Entries are offsets in the memory that the file has too.
	Conns, Entries int64
	// Epoch is the CLOCK_MONOTONIC time in nanoseconds of tick 0.
	Epoch int64
}

// IsTable reports whether the memory of a table begins with b, whole or not.
func IsTable(b []byte) bool { return bytes.HasPrefix(b, magic[:]) }

// Constant is a number that such a reader needs besides.
type Constant struct {
	Name, Comment string
	Value         uint64
}

// Layout returns the cells of the table and their constants, to be written down in another
// language: Entry and bucket of the index, each a cache line, and Conn, half of a line.
func Layout() (cells [3]reflect.Type, constants []Constant) {
	cells = [3]reflect.Type{reflect.TypeFor[Entry](), reflect.TypeFor[Conn](), reflect.TypeFor[bucket]()}
	return cells, []Constant{
		{"slots", "of a bucket", slotsPerBucket},
		{"pending", "bit of a slot whose entry is not live", slotPending},
		{"probes", "buckets in which a key may be", maxProbes},
		{"tick_ns", "nanoseconds of a tick", 1e9 / TicksPerSecond},
		{"mode_nat", "", uint64(ModeNAT)},
		{"mode_dnat", "", uint64(ModeDNAT)},
		{"mode_l2dsr", "", uint64(ModeL2DSR)},
		{"mode_ipip", "", uint64(ModeIPIP)},
		{"mode_gue", "", uint64(ModeGUE)},
		{"flag_outer6", "", FlagOuter6},
		{"flag_watched", "", FlagWatched},
		{"milestone", "bytes: see Milestone", milestone},
		{"nearby", "see Conn.Sample", tcp.Nearby},
		{"followed", "see Followed", Followed},
	}
}
