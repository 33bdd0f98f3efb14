package lb

import (
	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/header"
	"github.com/weirlb/weir/lb/xsk"
)

const (
	waitingFrames      = 256 // frames of fragments that may wait on one worker
	waitingPerDatagram = 64  // fragments: the longest datagram has 45 of 1,480 bytes
	waitingTicks       = 2 * secondTicks
)

// waiting is a fragment that came before the first of its datagram, untouched.
type waiting struct {
	key   conntrack.Key // of the datagram
	desc  [maxBuffers]xsk.Desc
	bufs  uint8
	ready bool // the first has come
	size  uint32
	in    int32
	until uint32
	order uint32 // of arrival
}

// awaitFirst keeps packet i until the first fragment of its datagram comes. When there
// is no room the fragment that has waited the longest gives way: of a datagram whose
// first fragment is to come it comes soon, and forged ones wait in vain.
func (w *worker) awaitFirst(b *batch, i int, k *conntrack.Key) {
	t := &w.datagrams
	n := int(b.bufs[i])
	same, oldest := t.waitFor(k)
	if same >= waitingPerDatagram {
		w.drop(b, i, DropFragmentLimit)
		return
	}
	x := waiting{key: *k, bufs: b.bufs[i], size: b.size[i], in: b.in[i],
		until: w.tick + waitingTicks, order: uint32(w.t.fragmentsHeld)}
	copy(x.desc[:], b.buffers(i))
	if t.frames+n > waitingFrames {
		if oldest == nil || t.frames-int(oldest.bufs)+n > waitingFrames {
			w.drop(b, i, DropFragmentLimit)
			return
		}
		w.t.drops[DropFragmentLimit]++
		w.freeBuffers(oldest.desc[:oldest.bufs])
		t.frames -= int(oldest.bufs)
		*oldest = x
	} else {
		t.waiting = append(t.waiting, x)
	}
	t.frames += n
	w.t.fragmentsHeld++
}

// waitFor returns how many fragments wait for the first of a datagram, and of all
// whose first has not come the one that has waited the longest, nil if there is none.
func (t *datagrams) waitFor(k *conntrack.Key) (same int, oldest *waiting) {
	for j := range t.waiting {
		x := &t.waiting[j]
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
func (w *worker) wakeWaiting(k *conntrack.Key) {
	t := &w.datagrams
	for j := range t.waiting {
		if x := &t.waiting[j]; x.key == *k {
			x.ready, t.ready = true, true
		}
	}
}

// releaseFragments sends those that need not wait any longer through the
// stages again, and gives up those whose first has not come in time.
func (w *worker) releaseFragments() {
	t := &w.datagrams
	if len(t.waiting) == 0 || !t.ready && t.looked == w.tick {
		return
	}
	t.ready, t.looked = false, w.tick
	b := &w.again
	b.n = 0
	keep := t.waiting[:0]
	for j := range t.waiting {
		x := &t.waiting[j]
		if !x.ready && int32(w.tick-x.until) < 0 || b.n == batchSize {
			t.ready = t.ready || x.ready
			keep = append(keep, *x)
			continue
		}
		t.frames -= int(x.bufs)
		i := b.n
		first := i * maxBuffers
		b.first[i], b.bufs[i], b.size[i], b.in[i] = uint8(first), x.bufs, x.size, x.in
		copy(b.desc[first:], x.desc[:x.bufs])
		if x.ready {
			b.n++
			continue
		}
		w.expireFragment(b, i, &x.key)
	}
	t.waiting = keep
	if b.n > 0 {
		w.process(b)
	}
}

// expireFragment deals with a fragment that waited in vain: one to the node's
// own address may be of a datagram of which the kernel has the rest.
func (w *worker) expireFragment(b *batch, i int, k *conntrack.Key) {
	header.Parse(w.frame(b, i), int(b.size[i]), &b.pkt[i])
	b.ok[i] = false
	w.datagrams.current = nil
	if path, ok := w.routes.Lookup(k.Dst().Addr(), 0); ok && path.Local {
		w.giveBack(b, i, DropFragmentExpired)
		return
	}
	w.drop(b, i, DropFragmentExpired)
}
