package xsk

import (
	"errors"
	"math/bits"
)

// ownership has the owner of every frame of a umem: Weir (0), or the kernel through a
// socket, to receive into or to send from. Only the owner of the frame writes an entry. By
// it a socket checks the frames that the kernel returns, and finds the frames of a closed
// socket again.
type ownership struct {
	owners     []ownerID
	shift      uint   // log2 of the frame size
	offsetMask uint64 // frameSize-1

	usedIDs [maxSockets]bool // numbers of sockets; guarded by the umem's mutex
}

// ownerID is a socket's number times two, and whether the frame is being sent.
type ownerID uint16

const (
	forTransmit ownerID = 1
	maxSockets          = 1 << 12

	// No kernel puts a packet further to the front than Headroom. Metadata and
	// outer headers are written before it: that must stay inside the frame.
	minOffset = Headroom / 2
)

func newOwnership(frames, frameSize int) ownership {
	return ownership{
		owners:     make([]ownerID, frames),
		shift:      uint(bits.TrailingZeros(uint(frameSize))),
		offsetMask: uint64(frameSize - 1),
	}
}

var errTooManySockets = errors.New("too many sockets share the packet memory")

// register gives a socket a number. The umem's mutex is held.
func (l *ownership) register(s *Socket) error {
	for n := 1; n < maxSockets; n++ {
		if !l.usedIDs[n] {
			l.usedIDs[n] = true
			s.owner = ownerID(n) << 1
			return nil
		}
	}
	return errTooManySockets
}

// give notes that the frame of addr goes to the kernel.
func (l *ownership) give(addr uint64, m ownerID) { l.owners[addr>>l.shift] = m }

// reclaim takes back the frame of addr, which may be anything; false if the
// kernel did not have it under this mark.
func (l *ownership) reclaim(addr uint64, m ownerID) bool {
	f := addr >> l.shift
	if f >= uint64(len(l.owners)) || l.owners[f] != m {
		return false
	}
	l.owners[f] = 0
	return true
}

// inFrame reports whether a descriptor lies in the frame as a received descriptor must.
func (l *ownership) inFrame(d *Desc) bool {
	at := d.Addr & l.offsetMask
	return at >= minOffset && at+uint64(d.Len) <= l.offsetMask+1
}

// reclaimReceived takes back the frame of a descriptor that makes sense, and no other.
func (l *ownership) reclaimReceived(d *Desc, m ownerID) bool {
	return l.inFrame(d) && l.reclaim(d.Addr, m)
}

// discardInvalid goes on from the first invalid descriptor: of that packet, and of any
// other invalid packet, it keeps only frames to be freed.
func (s *Socket) discardInvalid(out []Desc, bad int) int {
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
			whole = whole && s.umem.inFrame(&out[i])
			if i >= bad && !s.umem.reclaim(out[i].Addr, s.owner) {
				whole = false
				continue
			}
			out[kept+n] = out[i]
			n++
		}
		if !whole {
			s.rejected.Add(1)
			clearContents(out[kept : kept+n])
		}
		kept += n
		from = to
	}
	return kept
}

// clearContents makes a packet without contents of descriptors.
func clearContents(packet []Desc) {
	for i := range packet {
		packet[i].Len = 0
		packet[i].Options = Continued
		if i == len(packet)-1 {
			packet[i].Options = 0
		}
	}
}

// ReclaimAll appends to free the address of every frame that the kernel had through s, and
// returns it. Preconditions: s is closed; the kernel's work on the
// device's queue has ended, or packets of it may leave with other contents. Other
// sockets may be at work: their entries change under the search, but never to or from that
// of s.
func (a *Umem) ReclaimAll(s *Socket, free []uint64) []uint64 {
	if s.owner == 0 || s.fd >= 0 {
		return free
	}
	for f := range a.owners {
		if a.owners[f]&^forTransmit == s.owner {
			a.owners[f] = 0
			free = append(free, a.Addr(f))
		}
	}
	a.mu.Lock()
	a.usedIDs[s.owner>>1] = false
	a.mu.Unlock()
	s.owner = 0
	return free
}
