package conntrack

import (
	"fmt"
	"hash/crc32"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/weirlb/weir/conntrack/memory"
)

// layoutVersion changes with anything that the file's bytes mean. The next process reads a table
// of another version by its schema.
const layoutVersion = 6

var magic = [8]byte{'W', 'E', 'I', 'R', 'F', 'L', 'O', 'W'}

const (
	headerSize = 4096
	connSize   = int64(unsafe.Sizeof(Conn{}))
	entrySize  = int64(unsafe.Sizeof(Entry{}))
	cursorSize = int64(unsafe.Sizeof(cursor{}))
	bucketSize = int64(unsafe.Sizeof(bucket{}))
	linkSize   = int64(unsafe.Sizeof(link{}))
)

// The sizes are part of the file's layout and of a packet's cost.
var (
	_ [32]byte = [unsafe.Sizeof(Conn{})]byte{}
	_ [64]byte = [unsafe.Sizeof(Entry{})]byte{}
	_ [64]byte = [unsafe.Sizeof(bucket{})]byte{}
	_ [16]byte = [unsafe.Sizeof(cursor{})]byte{}
)

// header is the file's first page.
type header struct {
	Shape shape
	Sum   uint32 // CRC-32 of Shape
	_     uint32
	// Epoch is the CLOCK_MONOTONIC time in nanoseconds of tick 0.
	Epoch int64
	// LastTick and LastWall (Unix nanoseconds) are of the last Sweep.
	LastTick uint32
	_        uint32
	LastWall int64
}

// shape has the properties that two processes must agree upon to share a file.
type shape struct {
	Magic     [8]byte
	Version   uint32
	ConnSize  uint32
	EntrySize uint32
	Cursors   uint32
	MaxFlows  uint64
	Size      uint64 // of the file
	Seed      [4]uint64
	BootID    [16]byte
}

func (s *shape) sum() uint32 {
	b := unsafe.Slice((*byte)(unsafe.Pointer(s)), unsafe.Sizeof(*s))
	return crc32.ChecksumIEEE(b)
}

func (h *header) note(tick uint32, now time.Time) {
	atomic.StoreUint32(&h.LastTick, tick)
	atomic.StoreInt64(&h.LastWall, now.UnixNano())
}

// plan is where the parts of the memory lie: the file holds header, cursors, Conns
// and entries, each at a page's start and from the Conns on at a huge page's.
type plan struct {
	cursors, conns, entries int64 // offsets
	size                    int64 // of the file
	buckets                 int64 // number of buckets, in private memory
}

// loadFactor is the share of the index's slots that a full table takes. At six in ten
// one bucket in thirty was too small, and one entry in a hundred lies in another. At seven in ten
// a connection needs 2.5 bytes less, but a program in the kernel, which looks into two buckets,
// does not find 1 entry in 450.
const loadFactor = 0.6

const minBuckets = 64

func planFor(maxFlows int64) plan {
	var p plan
	p.cursors = headerSize
	p.conns = align(p.cursors+cursorCount*cursorSize, maxFlows*connSize)
	p.entries = align(p.conns+maxFlows*connSize, 2*maxFlows*entrySize)
	p.size = p.entries + 2*maxFlows*entrySize
	p.size = (p.size + headerSize - 1) &^ (headerSize - 1)
	p.buckets = max(minBuckets, int64(float64(2*maxFlows)/(slotsPerBucket*loadFactor))+1)
	return p
}

// align rounds an offset up to a page, or to a huge page where the part is large
// enough to profit.
func align(offset, size int64) int64 {
	to := int64(headerSize)
	if size >= memory.HugePage {
		to = memory.HugePage
	}
	return (offset + to - 1) &^ (to - 1)
}

// index is the size of the index.
func (p plan) index() int64 { return p.buckets * bucketSize }

// bytesPerFlow is the memory of a connection in all, rounded up.
const bytesPerFlow = connSize + 2*entrySize + linkSize + 2*bucketSize*10/(slotsPerBucket*6) + 1

const (
	// autoShare is the part of memory that MaxFlows 0 may take: 1/20.
	autoShare = 20
	// autoMost is the most that MaxFlows 0 chooses, about 2.1 GB.
	autoMost = 10_000_000
	minFlows = 1024
	// mostFlows keeps entry numbers within a Ref.
	mostFlows = 1 << 30
)

// autoFlows returns how many connections fit into autoShare of memory beside the
// counters of maxEndpoints, if each needs more bytes than bytesPerFlow.
func autoFlows(m memory.Machine, maxEndpoints, more int64) (int64, error) {
	total, err := m.Total()
	if err != nil {
		return 0, fmt.Errorf("choose the number of flows: %w", err)
	}
	fixed := headerSize + cursorCount*cursorSize + 2*memory.HugePage + 8*(maxEndpoints+2*maxServices)
	return min(max((total/autoShare-fixed)/(bytesPerFlow+more), minFlows), autoMost), nil
}

// viewFile lays the parts in the file over the mapping.
func (o *opener) viewFile(file []byte, p plan, maxFlows int64) {
	o.head = (*header)(unsafe.Pointer(&file[0]))
	o.ports.cursors = unsafe.Slice((*cursor)(unsafe.Pointer(&file[p.cursors])), cursorCount)
	o.conns = unsafe.Slice((*Conn)(unsafe.Pointer(&file[p.conns])), maxFlows)
	o.entries = unsafe.Slice((*Entry)(unsafe.Pointer(&file[p.entries])), 2*maxFlows)
	o.index.entries = o.entries
}

// viewPrivate lays index and links over private memory.
func (o *opener) viewPrivate(p plan) {
	o.index.buckets = unsafe.Slice((*bucket)(unsafe.Pointer(&o.mem.index[0])), p.buckets)
	o.links = unsafe.Slice((*link)(unsafe.Pointer(&o.mem.links[0])), len(o.conns))
}
