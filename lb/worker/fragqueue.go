package worker

import (
	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/counter"
	"github.com/weirlb/weir/lb/header"
)

const (
	fragQueueFrames      = 256 // frames of fragments that may wait on a worker
	fragQueuePerDatagram = 64  // fragments: the longest datagram has 45 of 1,480 bytes
	fragQueueTicks       = 2 * secondTicks
)

// fragQueue holds fragments that came before the first of their datagram.
type fragQueue struct {
	list   []queuedFragment
	frames int  // of packet memory that list holds
	ready  bool // the first fragment of some in list has come
	looked uint32
}

// queuedFragment is a fragment that came before the first of the datagram, untouched.
type queuedFragment struct {
	key conntrack.Key // of the datagram
	frames
	ready bool // the first has come
	until uint32
	order uint32 // of arrival
}

// queueFragment keeps packet p until the first fragment of the datagram comes. When there
// is no room, the fragment that has waited the longest is dropped: a genuine first fragment
// comes soon, and that of forged fragments never.
func (w *fragmentHandler) queueFragment(p *pkt, k *conntrack.Key) verdict {
	t := &w.fragQueue
	n := int(p.n)
	same, oldest := t.waitingFor(k)
	if same >= fragQueuePerDatagram {
		return drop(DropFragmentLimit)
	}
	x := queuedFragment{key: *k, frames: p.frames,
		until: w.tick + fragQueueTicks, order: uint32(w.counts[counter.QueuedFragments])}
	if t.frames+n > fragQueueFrames {
		if oldest == nil || t.frames-int(oldest.n)+n > fragQueueFrames {
			return drop(DropFragmentLimit)
		}
		w.dropFrames(&oldest.frames, DropFragmentLimit)
		t.frames -= int(oldest.n)
		*oldest = x
	} else {
		t.list = append(t.list, x)
	}
	t.frames += n
	w.counts[counter.QueuedFragments]++
	return queued
}

// waitingFor returns how many fragments wait for the first of a datagram. Of all without a
// first fragment it returns the longest waiting, nil if there is none.
func (t *fragQueue) waitingFor(k *conntrack.Key) (same int, oldest *queuedFragment) {
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

// markReady marks the fragments that waited for the first of a datagram.
func (t *fragQueue) markReady(k *conntrack.Key) {
	for j := range t.list {
		if x := &t.list[j]; x.key == *k {
			x.ready, t.ready = true, true
		}
	}
}

// releaseFragments adds those that need not wait any longer to an empty batch, and gives up those
// whose first has not come in time.
func (w *fragmentHandler) releaseFragments(b *batch) {
	t := &w.fragQueue
	if len(t.list) == 0 || !t.ready && t.looked == w.tick {
		return
	}
	t.ready, t.looked = false, w.tick
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
		p.data = w.frame(p)
		w.act(p, w.expireFragment(p, &x.key))
	}
	t.list = keep
}

// expireFragment handles a fragment whose first has not come in time. If it is to the
// node's own address, the kernel may have the rest of the datagram.
func (w *fragmentHandler) expireFragment(p *pkt, k *conntrack.Key) verdict {
	header.Parse(p.data, int(p.size), &p.Packet)
	p.datagram = nil
	if w.routes.Local(k.Dst().Addr()) {
		return punt(DropFragmentExpired)
	}
	return drop(DropFragmentExpired)
}
