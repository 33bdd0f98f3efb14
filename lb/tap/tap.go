// Package tap copies packets out of running workers, for captures and traces. A worker
// writes a [Record] per packet into a ring of its own; a single reader takes them out. The
// worker never waits: a record for which there is no room is counted and lost.
package tap

import (
	"fmt"
	"net/netip"
	"sync/atomic"

	"github.com/weirlb/weir/lb/pcapfilter"
)

// Verdict is the outcome of a packet.
type Verdict uint8

// Verdicts.
const (
	Forward   Verdict = iota // to the next hop
	Punt                     // to the kernel
	Reply                    // answered: an echo reply, a RST, an ABORT or an ICMP error
	Challenge                // answered with a challenge ACK (RFC 5961)
	Drop
	Queue // until a neighbor or a fragment comes
	verdicts
)

var verdictNames = [verdicts]string{"forward", "punt", "reply", "challenge", "drop", "queue"}

// String is the name of the verdict.
func (v Verdict) String() string {
	if v < verdicts {
		return verdictNames[v]
	}
	return "unknown"
}

// Record is a packet: the received frame, the sent frame, and the outcome. A packet that
// leaves in several fragments has a record for each, of which the first has the received
// frame.
type Record struct {
	Time int64  // of the receipt, in ns since 1970
	ID   uint64 // of the packet, unique in a tap
	// In and Out are numbers of ports, -1 for none.
	In, Out int32
	Verdict Verdict
	// Reason is a drop reason if HasReason: of a drop or of a refusal.
	Reason    uint8
	HasReason bool
	// Conn is a number that the packets of both directions of a connection share; 0
	// for a packet of no connection. The fields up to SNAT are those of the connection.
	Conn                       uint64
	Service                    uint32
	Proto, Mode                uint8
	Client, Frontend, Endpoint netip.AddrPort
	SNAT                       netip.AddrPort // invalid where the mode has none
	// InLen and OutLen are the lengths of the frames, 0 for none. InData and OutData are
	// the first bytes.
	InLen, OutLen   uint32
	InData, OutData []byte
}

// Config has the parts of a tap.
type Config struct {
	Filter  *pcapfilter.Filter // nil: every packet
	SnapLen int                // bytes of a frame that are copied
	Bytes   int                // memory for each worker
	Workers int
	// PerSecond is the number of records that a worker writes in a second at most, 0 for any.
	// TicksPerSecond is then the rate of the clock of Begin.
	PerSecond, TicksPerSecond uint32
}

// Tap is a set of rings, of each worker one.
type Tap struct {
	cfg   Config
	rings []ring
}

// MaxPorts is the number of ports whose lost frames are counted.
const MaxPorts = 64

// minSlots is the number of records for which a ring has room at least.
const minSlots = 64

// New makes a tap. It fails if the memory holds no minSlots records.
func New(cfg Config) (*Tap, error) {
	slots := cfg.Bytes / (2*cfg.SnapLen + recordBytes)
	if slots < minSlots {
		return nil, fmt.Errorf("tap: %d bytes hold %d packets of %d bytes, want %d", cfg.Bytes, slots, cfg.SnapLen, minSlots)
	}
	t := &Tap{cfg: cfg, rings: make([]ring, cfg.Workers)}
	for i := range t.rings {
		t.rings[i].init(slots, cfg.SnapLen)
		t.rings[i].allowance = cfg.mostAllowance()
	}
	return t, nil
}

// recordBytes is about the size of a Record.
const recordBytes = 256

// SnapLen is the number of bytes of a frame that are copied.
func (t *Tap) SnapLen() int { return t.cfg.SnapLen }

// Match reports whether a packet passes the filter.
func (t *Tap) Match(p *pcapfilter.Packet) bool { return t.cfg.Filter == nil || t.cfg.Filter.Match(p) }

// Begin returns the next record of a worker to be written, nil if there is no room or the
// rate is reached. in and out are the ports of the frames that the record is to have, -1 for none.
// Only the worker calls it, and then Commit.
func (t *Tap) Begin(worker int, tick uint32, in, out int32) *Record {
	r := &t.rings[worker]
	if t.cfg.PerSecond > 0 && !r.allow(tick, &t.cfg) {
		r.skipped.Store(r.skipped.Load() + 1)
		return nil
	}
	s := r.begin()
	if s == nil {
		lose(&r.lostIn, in)
		lose(&r.lostOut, out)
	}
	return s
}

// lose counts a lost frame of a port.
func lose(by *[MaxPorts]atomic.Uint64, port int32) {
	if uint32(port) < MaxPorts {
		by[port].Store(by[port].Load() + 1)
	}
}

// allow takes the share of a record from the allowance, which a tick adds PerSecond to, and a
// record takes TicksPerSecond from: a slow rate has records at intervals of many ticks.
func (r *ring) allow(tick uint32, cfg *Config) bool {
	r.allowance = min(cfg.mostAllowance(), r.allowance+uint64(tick-r.tick)*uint64(cfg.PerSecond))
	r.tick = tick
	if r.allowance < uint64(cfg.TicksPerSecond) {
		return false
	}
	r.allowance -= uint64(cfg.TicksPerSecond)
	return true
}

// Copy copies the first bytes of a frame into InData or OutData of a record of Begin.
func (t *Tap) Copy(to *[]byte, frame []byte) {
	*to = append((*to)[:0], frame[:min(len(frame), t.cfg.SnapLen)]...)
}

// Commit lets the reader have the record of Begin.
func (t *Tap) Commit(worker int) {
	r := &t.rings[worker]
	r.head.Store(r.head.Load() + 1)
}

// Lost is the number of records for which there was no room.
func (t *Tap) Lost() uint64 { return t.sum(func(r *ring) *atomic.Uint64 { return &r.lost }) }

// mostAllowance is the allowance that a quiet time leaves: little enough that no second has more
// records than PerSecond.
func (c *Config) mostAllowance() uint64 { return uint64(c.PerSecond) + uint64(c.TicksPerSecond) - 1 }

// Skipped is the number of packets beyond PerSecond.
func (t *Tap) Skipped() uint64 { return t.sum(func(r *ring) *atomic.Uint64 { return &r.skipped }) }

// LostFrames are the numbers of received and sent frames of a port that lost records would have.
func (t *Tap) LostFrames(port int32) (received, sent uint64) {
	return t.sum(func(r *ring) *atomic.Uint64 { return &r.lostIn[port] }),
		t.sum(func(r *ring) *atomic.Uint64 { return &r.lostOut[port] })
}

func (t *Tap) sum(of func(*ring) *atomic.Uint64) (n uint64) {
	for i := range t.rings {
		n += of(&t.rings[i]).Load()
	}
	return n
}

// Read calls f for the records that are there, of all workers the oldest first, until f
// returns false. A record is valid during the call. There may be a single reader.
func (t *Tap) Read(f func(*Record) bool) {
	for {
		oldest := (*ring)(nil)
		for i := range t.rings {
			r := &t.rings[i]
			if s := r.peek(); s != nil && (oldest == nil || s.Time < oldest.peek().Time) {
				oldest = r
			}
		}
		if oldest == nil {
			return
		}
		more := f(oldest.peek())
		oldest.tail.Store(oldest.tail.Load() + 1)
		if !more {
			return
		}
	}
}

// ring is the records of a worker. The worker writes head, the reader tail.
type ring struct {
	slots     []Record
	head      atomic.Uint64
	lost      atomic.Uint64
	lostIn    [MaxPorts]atomic.Uint64 // frames by port
	lostOut   [MaxPorts]atomic.Uint64
	skipped   atomic.Uint64
	allowance uint64   // see allow
	tick      uint32   // of the allowance
	_         [64]byte // the reader's line
	tail      atomic.Uint64
	_         [64]byte
}

func (r *ring) init(slots, snap int) {
	r.slots = make([]Record, slots)
	data := make([]byte, 2*slots*snap)
	for i := range r.slots {
		s := &r.slots[i]
		s.InData, s.OutData, data = data[:0:snap], data[snap:snap:2*snap], data[2*snap:]
	}
}

func (r *ring) begin() *Record {
	n := r.head.Load()
	if n-r.tail.Load() == uint64(len(r.slots)) {
		r.lost.Store(r.lost.Load() + 1)
		return nil
	}
	s := &r.slots[n%uint64(len(r.slots))]
	*s = Record{InData: s.InData[:0], OutData: s.OutData[:0]}
	return s
}

func (r *ring) peek() *Record {
	n := r.tail.Load()
	if n == r.head.Load() {
		return nil
	}
	return &r.slots[n%uint64(len(r.slots))]
}
