package ratelimit

import (
	"math/bits"
	"sync/atomic"

	"github.com/weirlb/weir/conntrack"
)

// Prefixes limits how many connections the sources of a prefix may begin per second. All
// workers share it. Its memory is fixed: a count-min sketch of rows of cells, each of which
// is the time at which the next connection is due (the generic cell rate algorithm). A
// prefix has a cell in each row, and the emptiest counts. A connection raises the others no
// further than that cell (conservative update). So a prefix never begins more connections
// than the rate, and another prefix is refused only if every cell of it is that of a prefix
// at the rate.
//
// Sources spread over all prefixes fill all cells alike. Each cell therefore empties at the
// rate and the share of a cell in all connections of the last second: no number of forged
// prefixes refuses another prefix, and up to prefixCells connections a second the share is 0.
type Prefixes struct {
	seed   [2]uint64
	limit  atomic.Uint64 // PrefixLimit, packed
	asked  window
	_      [64]byte // asked is written by all workers
	sketch [prefixRows][prefixCells]atomic.Uint64
}

const (
	prefixRows  = 4
	prefixCells = 1 << 16 // a row is 16 bits of the hash
)

// PrefixLimit is a limit of new connections.
type PrefixLimit struct {
	// PerSecond may begin in a second, and at once; 0: no limit.
	PerSecond uint32
	// Bits4 and Bits6 are the lengths of prefixes: up to 32, and up to 64.
	Bits4, Bits6 uint8
}

// NewPrefixes returns Prefixes without a limit. The seed keeps outsiders from choosing
// sources that share the cells of others.
func NewPrefixes(seed [2]uint64) *Prefixes { return &Prefixes{seed: seed} }

// Set changes the limit. Any goroutine may call it.
func (p *Prefixes) Set(l PrefixLimit) {
	p.limit.Store(uint64(l.PerSecond) | uint64(l.Bits4)<<32 | uint64(l.Bits6)<<40)
}

// Take takes a connection of a source at a tick, and reports whether it may begin. source
// is the first eight bytes of an IPv6 address, or the four bytes of an IPv4 address, in a
// little-endian load. tick counts as conntrack.Table.Tick does and may wrap around.
func (p *Prefixes) Take(source uint64, family uint8, tick uint32) bool {
	limit := p.limit.Load()
	if uint32(limit) == 0 {
		return true
	}
	p.asked.add(tick)
	return p.take(limit, source, family, tick, true)
}

// Refuses reports whether Take would refuse the connection. It changes nothing.
func (p *Prefixes) Refuses(source uint64, family uint8, tick uint32) bool {
	limit := p.limit.Load()
	return uint32(limit) != 0 && !p.take(limit, source, family, tick, false)
}

// prefixSecond is a second in the time of a cell: ticks with 32 more bits.
const prefixSecond = conntrack.TicksPerSecond << 32

func (p *Prefixes) take(limit, source uint64, family uint8, tick uint32, take bool) bool {
	hash := p.hash(limit, source, family)
	rate := uint64(uint32(limit)) + uint64(p.asked.perSecond(tick))/prefixCells
	step, now := prefixSecond/rate, uint64(tick)<<32
	for {
		emptiest, ahead := 0, int64(prefixSecond)<<1
		var due [prefixRows]uint64
		for row := range prefixRows {
			due[row] = p.cell(row, hash).Load()
			if a := aheadOf(due[row], now); a < ahead {
				emptiest, ahead = row, a
			}
		}
		next := ahead + int64(step)
		if next > prefixSecond {
			return false
		}
		if !take {
			return true
		}
		// The emptiest cell last: the connection begins by it. A worker that sees the others
		// raised before cannot take the same.
		for row := range prefixRows {
			if row != emptiest && aheadOf(due[row], now) < next {
				p.raise(p.cell(row, hash), now, next)
			}
		}
		if p.cell(emptiest, hash).CompareAndSwap(due[emptiest], now+uint64(next)) {
			return true
		}
	}
}

// raise has a cell be due next after now at the earliest.
func (p *Prefixes) raise(cell *atomic.Uint64, now uint64, next int64) {
	for {
		due := cell.Load()
		if aheadOf(due, now) >= next || cell.CompareAndSwap(due, now+uint64(next)) {
			return
		}
	}
}

func (p *Prefixes) cell(row int, hash uint64) *atomic.Uint64 {
	return &p.sketch[row][uint16(hash>>(16*row))]
}

// aheadOf is how long after now something is due, 0 if it is due. A cell is due within a second,
// by a clock of another worker that may be ahead: what seems due later is years old, by half the
// clock's range.
func aheadOf(due, now uint64) int64 {
	if ahead := int64(due - now); ahead > 0 && ahead <= 2*prefixSecond {
		return ahead
	}
	return 0
}

// hash is the hash of a source's prefix.
func (p *Prefixes) hash(limit, source uint64, family uint8) uint64 {
	if family == 4 {
		source &= uint64(bits.ReverseBytes32(^uint32(0) << (32 - uint8(limit>>32)&63)))
	} else {
		source &= bits.ReverseBytes64(^uint64(0) << (64 - uint8(limit>>40)&127))
	}
	hi, lo := bits.Mul64(source^p.seed[0], p.seed[1]|1)
	hi, lo = bits.Mul64(hi^lo^uint64(family), p.seed[0]|1)
	return hi ^ lo
}

// window counts events in a second, and keeps the number of the second before.
type window struct{ now, before atomic.Uint64 } // second<<32 | number

func (w *window) add(tick uint32) {
	second, now := tick/conntrack.TicksPerSecond, w.now.Load()
	if uint32(now>>32)-second <= 1 { // a worker's clock may be behind
		w.now.Add(1)
	} else if w.now.CompareAndSwap(now, uint64(second)<<32|1) {
		w.before.Store(now)
	}
}

// perSecond is the larger number of this second and the one before.
func (w *window) perSecond(tick uint32) (n uint32) {
	second := tick / conntrack.TicksPerSecond
	for _, v := range [2]uint64{w.now.Load(), w.before.Load()} {
		if second-uint32(v>>32) <= 1 {
			n = max(n, uint32(v))
		}
	}
	return n
}
