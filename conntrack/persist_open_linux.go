package conntrack

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/weirlb/weir/conntrack/flowstate"
	"github.com/weirlb/weir/conntrack/memory"
	"github.com/weirlb/weir/conntrack/statefile"
)

// Config describes the table to open.
type Config struct {
	// Path is the file that holds the table, from which the next process restores it. It
	// belongs on a tmpfs such as /run: on a disk the kernel writes it back all the
	// time. "" is anonymous memory.
	Path string
	// MaxFlows is the number of connections. 0 takes at most 5 % of the memory of
	// the machine or the control group, at most 10 million.
	MaxFlows int
	// Workers is the number of Worker handles, at least 1.
	Workers int
	// MaxEndpoints is the number of endpoint flow counters. 0 is 1<<20.
	MaxEndpoints int
	Timeouts     flowstate.Timeouts
	// Memory, if not nil, holds the table in place of the file, which then is a lock. The
	// connections follow when the next process has a Memory and the last had none, or the
	// reverse.
	Memory Memory
	// NextHops is the number of the caller's next hops: next-hop words of an earlier process
	// stay in Memory if the number in their lower 16 bits is less.
	NextHops int
	// RecordsPerSecond is how many beginnings of connections are recorded per second, for
	// [Table.ReadRecords]; 0 records nothing. Recording takes 33 bytes for each connection.
	RecordsPerSecond int
}

// ErrInUse is the error of Open when another process has the file.
var ErrInUse = errors.New("in use by another process")

// Restoration reports how Open treated an existing file.
type Restoration struct {
	Restored  bool
	Flows     int    // connections restored
	Discarded int    // connections left out
	Resized   int    // size of the old table if that differed, else 0
	Migrated  int    // version of the layout of the old table if that differed, else 0
	SetAside  string // new name of a file that could not be restored, "" if none
	Reason    string // why the file could not be restored
	// DiscardedBy has Discarded by cause.
	DiscardedBy map[DiscardCause]int
	// Moved: there was memory of an earlier process, and the table is not in it. A program of that
	// process may still forward by the connections there, and learns of no change.
	Moved bool
	// MemoryReason is why the memory of an earlier process could not be restored.
	MemoryReason string
	// MemoryErr is why the table is in the file although there is a Config.Memory.
	MemoryErr error
}

// LayoutVersion is the version of the layout of tables. The connections of a table of another
// version are copied by its schema; without a schema that can be read it is set aside.
func LayoutVersion() int { return layoutVersion }

// Open makes a table, or restores the table that an earlier process left in Config.Path,
// however that process ended. A file that cannot be restored, or that another user could have
// written, is set aside as Path+".bad". A directory that others may write is an error.
// All memory is allocated now: an error here, never a fault later.
func Open(cfg Config) (*Table, error) {
	t, err := newTable(cfg)
	if err != nil {
		return nil, fmt.Errorf("flow table: %w", err)
	}
	if err := (&opener{t, cfg}).open(); err != nil {
		if t.mem != nil {
			_ = t.mem.close()
		}
		if cfg.Path != "" {
			return nil, fmt.Errorf("flow table %s: %w", cfg.Path, err)
		}
		return nil, fmt.Errorf("flow table: %w", err)
	}
	return t, nil
}

// opener makes a table of a Config, step by step: new, or with the connections of an earlier process.
type opener struct {
	*Table
	cfg Config
}

func (o *opener) open() error {
	o.mem = &mapping{}
	old, err := o.take(o.cfg.Path)
	if err != nil {
		return err
	}
	if o.cfg.Path != "" {
		_ = os.Remove(o.cfg.Path + newSuffix) // of a process that was killed, or of another user
	}
	if o.cfg.Memory != nil {
		return o.openWithMemory(old)
	}
	return o.openFile(old)
}

// openFile opens the table in the file, which the last process has left.
func (o *opener) openFile(last *lastTable) error {
	maxFlows, err := chooseFlows(o.cfg, last)
	if err != nil {
		return err
	}
	if last != nil {
		why, cause := last.mismatch, last.cause
		if why == "" && !last.sameAs(maxFlows) {
			if err := o.renew(last, maxFlows); err == nil {
				o.size()
				return (&restorer{o.Table}).restore()
			} else {
				why, cause = fmt.Sprintf("layout version %d for %d flows, now %d for %d: %v",
					last.version, last.maxFlows, layoutVersion, maxFlows, err), statefile.Size
			}
		}
		if why != "" {
			if err := o.setAside(o.cfg.Path, cause, why); err != nil {
				return err
			}
			last = nil
		}
	}
	if err := o.mapMemory(maxFlows, last == nil); err != nil {
		return err
	}
	o.size()
	if last == nil {
		return o.initialize(maxFlows)
	}
	return (&restorer{o.Table}).restore()
}

// chooseFlows returns the number of connections. The automatic number differs a little from
// start to start; that is no reason to copy a table of about that size.
func chooseFlows(cfg Config, last *lastTable) (int64, error) {
	if cfg.MaxFlows != 0 {
		return int64(min(cfg.MaxFlows, mostFlows-1)), nil // a slot holds a Ref of 31 bits
	}
	n, err := autoFlows(memory.Machine{Root: "/"}, maxEndpoints(cfg), cfg.recordMemory(1))
	if err != nil {
		return 0, err
	}
	if last.restorable() && last.maxFlows >= n*3/4 && last.maxFlows <= n {
		return last.maxFlows, nil
	}
	return n, nil
}

// maxServices is the number of flow counters of Services.
const maxServices = 1 << 17

func maxEndpoints(cfg Config) int64 {
	if cfg.MaxEndpoints == 0 {
		return 1 << 20
	}
	return int64(cfg.MaxEndpoints)
}

// take opens and locks the file. It returns the table in it, or nil for a new file.
func (o *opener) take(path string) (*lastTable, error) {
	if path == "" {
		return nil, nil // anonymous memory
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	f, err := statefile.Open(path, os.O_RDWR|os.O_CREATE)
	if errors.Is(err, statefile.ErrUntrusted) && !errors.Is(err, statefile.ErrDirectory) {
		return nil, o.setAside(path, statefile.Untrusted, err.Error())
	}
	if err != nil {
		return nil, err
	}
	o.mem.file = f
	if err := lock(f); err != nil {
		return nil, err
	}
	// Whoever had it before us may have moved it away meanwhile.
	mine, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if now, err := os.Lstat(path); err != nil || !os.SameFile(mine, now) {
		return nil, ErrInUse
	}
	o.mem.fileSize = mine.Size()
	if mine.Size() == 0 {
		return nil, nil
	}
	page := make([]byte, headerSize)
	n, _ := f.ReadAt(page, 0) // what is not there is no header
	return examine(page[:n], mine.Size()), nil
}

// mapMemory allocates and maps everything, after it has checked that there is
// room: a control group would otherwise kill the process instead.
func (o *opener) mapMemory(maxFlows int64, fresh bool) error {
	p := planFor(maxFlows)
	need := p.index() + maxFlows*linkSize + o.cfg.recordMemory(maxFlows) + o.mem.holes()
	if fresh {
		need += p.size
	}
	if err := checkAvailable(maxFlows, need); err != nil {
		return err
	}
	if err := o.mapShared(p, maxFlows, fresh); err != nil {
		return err
	}
	var err error
	if o.mem.index, err = o.mem.MapPrivate(p.index()); err != nil {
		return err
	}
	if o.mem.links, err = o.mem.MapPrivate(maxFlows * linkSize); err != nil {
		return err
	}
	o.mem.fileSize = p.size
	o.viewFile(o.mem.shared, p, maxFlows)
	o.viewPrivate(p)
	return nil
}

// mapShared maps the file, and allocates all blocks that it lacks, those of a new file in huge
// pages where possible.
func (o *opener) mapShared(p plan, maxFlows int64, fresh bool) (err error) {
	fd := -1
	if o.mem.file != nil {
		fd = int(o.mem.file.Fd())
	}
	if fresh && fd >= 0 {
		if err := o.mem.file.Truncate(p.size); err != nil {
			return err
		}
	}
	if o.mem.shared, err = o.mem.Map(fd, p.size); err != nil {
		return err
	}
	if fresh && fd >= 0 {
		memory.PopulateHuge(o.mem.shared)
	}
	populated := memory.Populate(o.mem.shared)
	if fd >= 0 {
		if err := memory.Allocate(o.mem.file, p.size); err != nil {
			if fresh {
				_ = o.mem.file.Truncate(0) // leave nothing half made behind
			}
			return fmt.Errorf("allocate %d MB for %d flows: %w", p.size>>20, maxFlows, err)
		}
	}
	if populated != nil {
		return fmt.Errorf("populate %d MB: %w", p.size>>20, populated)
	}
	return nil
}

// initialize writes the header of a new table; the rest is zero already.
func (o *opener) initialize(maxFlows int64) error {
	now, base, err := bothClocks(monotonic)
	if err != nil {
		return err
	}
	o.base = base
	h := o.head
	h.Epoch = now
	h.LastWall = base.UnixNano()
	h.Shape = shape{
		Magic: magic, Version: layoutVersion,
		ConnSize: uint32(connSize), EntrySize: uint32(entrySize), Cursors: cursorCount,
		MaxFlows: uint64(maxFlows), Size: uint64(planFor(maxFlows).size),
		Seed: newSeed(), BootID: bootID(),
	}
	h.Sum = h.Shape.sum()
	o.seed = h.Shape.Seed
	return describe(o.head, maxFlows)
}

func newSeed() (seed [4]uint64) {
	var b [32]byte
	_, _ = rand.Read(b[:]) // does not fail
	for i := range seed {
		seed[i] = binary.LittleEndian.Uint64(b[8*i:])
	}
	seed[3] |= 1
	return seed
}

// bootID returns the kernel's random name of this boot, zero if it has none.
func bootID() (id [16]byte) {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return id
	}
	_, _ = hex.Decode(id[:], []byte(strings.ReplaceAll(strings.TrimSpace(string(b)), "-", "")))
	return id
}
