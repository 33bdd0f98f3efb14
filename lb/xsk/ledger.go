package xsk

import (
	"errors"
	"math/bits"
)

// ledger says of every frame of an area who has it: Weir (0), or the kernel by
// way of a socket, to receive into or to send from. Each entry is written only
// by who has the frame. It lets a socket tell what the kernel may give back
// from what it cannot mean, and a closed socket's frames be found again.
type ledger struct {
	where []mark
	shift uint   // log2 of the frame size
	inset uint64 // frameSize-1

	taken [maxSockets]bool // numbers of sockets; guarded by the area's mutex
}

// mark is a socket's number times two, and whether the frame is being sent.
type mark uint16

const (
	sending    mark = 1
	maxSockets      = 1 << 12

	// No kernel puts a packet further to the front than Headroom. Metadata and
	// outer headers are written before it: that must stay inside the frame.
	leastOffset = Headroom / 2
)

func newLedger(frames, frameSize int) ledger {
	return ledger{
		where: make([]mark, frames),
		shift: uint(bits.TrailingZeros(uint(frameSize))),
		inset: uint64(frameSize - 1),
	}
}

var errManySockets = errors.New("too many sockets share the packet memory")

// enter gives a socket a number. The area's mutex is held.
func (l *ledger) enter(s *Socket) error {
	for n := 1; n < maxSockets; n++ {
		if !l.taken[n] {
			l.taken[n] = true
			s.mark = mark(n) << 1
			return nil
		}
	}
	return errManySockets
}

// lend notes that the frame of addr goes to the kernel.
func (l *ledger) lend(addr uint64, m mark) { l.where[addr>>l.shift] = m }

// recover takes back the frame of addr, which may be anything; false if the
// kernel did not have it under this mark.
func (l *ledger) recover(addr uint64, m mark) bool {
	f := addr >> l.shift
	if f >= uint64(len(l.where)) || l.where[f] != m {
		return false
	}
	l.where[f] = 0
	return true
}

// fits says whether a descriptor lies in its frame as a received one must.
func (l *ledger) fits(d *Desc) bool {
	at := d.Addr & l.inset
	return at >= leastOffset && at+uint64(d.Len) <= l.inset+1
}

// received takes back the frame of a descriptor that makes sense, and no other.
func (l *ledger) received(d *Desc, m mark) bool { return l.fits(d) && l.recover(d.Addr, m) }

// sift goes on from the first descriptor that makes no sense: of its packet, and
// of any other such one, it keeps only frames to be freed.
func (s *Socket) sift(out []Desc, bad int) int {
	kept := bad
	for kept > 0 && out[kept-1].Options&Continued != 0 {
		kept--
	}
	for from := kept; from < len(out); {
		to := from + 1
		for to < len(out) && out[to-1].Options&Continued != 0 {
			to++
		}
		n, whole := 0, true
		for i := from; i < to; i++ {
			whole = whole && s.area.fits(&out[i])
			if i >= bad && !s.area.recover(out[i].Addr, s.mark) {
				whole = false
				continue
			}
			out[kept+n] = out[i]
			n++
		}
		if !whole {
			s.rejected.Add(1)
			void(out[kept : kept+n])
		}
		kept += n
		from = to
	}
	return kept
}

// void makes a packet without contents of descriptors.
func void(packet []Desc) {
	for i := range packet {
		packet[i].Len = 0
		packet[i].Options = Continued
		if i == len(packet)-1 {
			packet[i].Options = 0
		}
	}
}

// Reclaim appends to free the address of every frame that the kernel had by way
// of s, and returns it. Preconditions: s is closed; the kernel's work on the
// device's queue has ended, or its packets may go out with other contents. Other
// sockets may be at work: their marks change under the search, but never to or
// from that of s.
func (a *Area) Reclaim(s *Socket, free []uint64) []uint64 {
	if s.mark == 0 || s.fd >= 0 {
		return free
	}
	for f := range a.where {
		if a.where[f]&^sending == s.mark {
			a.where[f] = 0
			free = append(free, a.Addr(f))
		}
	}
	a.mu.Lock()
	a.taken[s.mark>>1] = false
	a.mu.Unlock()
	s.mark = 0
	return free
}
