package worker

import (
	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/header"
)

const (
	waitingFrames      = 256 // frames of fragments that may wait on one worker
	waitingPerDatagram = 64  // fragments: the longest datagram has 45 of 1,480 bytes
	waitingTicks       = 2 * secondTicks
)

// fragQueue holds fragments that came before the first of their datagram.
type fragQueue struct {
	list   []waiting
	frames int  // of packet memory that list holds
	ready  bool // the first fragment of some in list has come
	looked uint32
}

// waiting is a fragment that came before the first of its datagram, untouched.
type waiting struct {
	key conntrack.Key // of the datagram
	frames
	ready bool // the first has come
	until uint32
	order uint32 // of arrival
}

// awaitFirst keeps packet p until the first fragment of its datagram comes. When there
// is no room the fragment that has waited the longest gives way: of a datagram whose
// first fragment is to come it comes soon, and forged ones wait in vain.
func (w *Worker) awaitFirst(p *pkt, k *conntrack.Key) {
	t := &w.waiting
	n := int(p.n)
	same, oldest := t.waitFor(k)
	if same >= waitingPerDatagram {
		w.drop(p, DropFragmentLimit)
		return
	}
	x := waiting{key: *k, frames: p.frames,
		until: w.tick + waitingTicks, order: uint32(w.t.fragmentsHeld)}
	if t.frames+n > waitingFrames {
		if oldest == nil || t.frames-int(oldest.n)+n > waitingFrames {
			w.drop(p, DropFragmentLimit)
			return
		}
		w.t.drops[DropFragmentLimit]++
		w.freeBuffers(oldest.bufs())
		t.frames -= int(oldest.n)
		*oldest = x
	} else {
		t.list = append(t.list, x)
	}
	t.frames += n
	w.t.fragmentsHeld++
}

// waitFor returns how many fragments wait for the first of a datagram, and of all
// whose first has not come the one that has waited the longest, nil if there is none.
func (t *fragQueue) waitFor(k *conntrack.Key) (same int, oldest *waiting) {
	for j := range t.list {
		x := &t.list[j]
		if x.key == *k {
			same++
		}
		if !x.ready && (oldest == nil || int32(x.order-oldest.order) < 0) {
			oldest = x
		}
	}
	return same, oldest
}

// wakeWaiting marks the fragments that waited for the first of a datagram.
func (w *Worker) wakeWaiting(k *conntrack.Key) {
	t := &w.waiting
	for j := range t.list {
		if x := &t.list[j]; x.key == *k {
			x.ready, t.ready = true, true
		}
	}
}

// releaseFragments sends those that need not wait any longer through the
// stages again, and gives up those whose first has not come in time.
func (w *Worker) releaseFragments() {
	t := &w.waiting
	if len(t.list) == 0 || !t.ready && t.looked == w.tick {
		return
	}
	t.ready, t.looked = false, w.tick
	b := &w.again
	b.n = 0
	keep := t.list[:0]
	for j := range t.list {
		x := &t.list[j]
		if !x.ready && int32(w.tick-x.until) < 0 || b.n == batchSize {
			t.ready = t.ready || x.ready
			keep = append(keep, *x)
			continue
		}
		t.frames -= int(x.n)
		p := b.add(&x.frames)
		if x.ready {
			continue
		}
		b.n--
		w.expireFragment(p, &x.key)
	}
	t.list = keep
	if b.n > 0 {
		w.process(b)
	}
}

// expireFragment deals with a fragment that waited in vain: one to the node's
// own address may be of a datagram of which the kernel has the rest.
func (w *Worker) expireFragment(p *pkt, k *conntrack.Key) {
	header.Parse(w.frame(p), int(p.size), &p.Packet)
	p.datagram = nil
	if path, ok := w.routes.Lookup(k.Dst().Addr(), 0); ok && path.Local {
		w.giveBack(p, DropFragmentExpired)
		return
	}
	w.drop(p, DropFragmentExpired)
}
