package lb

import (
	"github.com/valyala/fastrand"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/header"
)

// datagrams is what one worker knows of datagrams that come in fragments: a
// set-associative table in which a new one takes the place of the oldest, so
// that a flood costs nothing but older ones.
type datagrams struct {
	sets [datagramSets][datagramWays]datagram
	// idents count identifications, by a hash of the addresses; each begins
	// anywhere.
	idents [identCounters]uint32

	waiting []waiting
	frames  int  // that waiting holds
	ready   bool // some of waiting has its first
	looked  uint32
}

const (
	datagramSets  = 512
	datagramWays  = 4
	identCounters = 256
	// datagramTicks without a fragment end a datagram: the fragments of one
	// are sent back to back.
	datagramTicks = 5 * secondTicks
	// maxRuns of bytes, with gaps between them, that are kept apart.
	maxRuns = 8
)

// datagram is one whose first fragment has come.
type datagram struct {
	key        conntrack.Key // addresses; identification | protocol<<32 | family<<40 in W[4]
	ports      uint32        // as loaded from the first fragment
	born, last uint32        // ticks of the first fragment and of the latest
	end        uint32        // bytes of payload in all, 0: the last fragment has not come
	id         uint32        // identification beyond
	renamed    bool          // id is valid
	kernels    bool          // the first was given back to the kernel
	broken     bool          // fragments overlapped
	echo       bool          // a ping, which is answered
	proto      uint8
	n          uint8 // of run
	run        [maxRuns]run
}

// run is a range of the payload that has been sent on, in units of eight bytes.
type run struct{ from, to uint16 }

func (t *datagrams) init(rng *fastrand.RNG) {
	t.waiting = make([]waiting, 0, waitingFrames)
	for i := range t.idents {
		t.idents[i] = rng.Uint32()
	}
}

// find returns the datagram of a key, nil when there is none.
func (t *datagrams) find(h uint64, k *conntrack.Key, tick uint32) *datagram {
	set := &t.sets[h%datagramSets]
	for i := range set {
		if d := &set[i]; d.key == *k {
			if tick-d.last >= datagramTicks {
				*d = datagram{}
				return nil
			}
			return d
		}
	}
	return nil
}

// add makes room for a datagram that is not in the table.
func (t *datagrams) add(h uint64, k *conntrack.Key, tick uint32) *datagram {
	set := &t.sets[h%datagramSets]
	oldest := &set[0]
	for i := range set {
		d := &set[i]
		if d.key == (conntrack.Key{}) {
			oldest = d
			break
		}
		if tick-d.last > tick-oldest.last {
			oldest = d
		}
	}
	*oldest = datagram{key: *k, born: tick, last: tick}
	return oldest
}

// begun says whether the first fragment has been sent on.
func (d *datagram) begun() bool { return d.n > 0 && d.run[0].from == 0 }

// complete says whether all of it has been sent on.
func (d *datagram) complete() bool {
	return d.end > 0 && d.n == 1 && d.run[0] == run{0, uint16((d.end + 7) / 8)}
}

// take notes a fragment that is to be sent on. What lies in a range that has
// been sent is a duplicate. What overlaps otherwise, or disagrees about the
// end, ends the datagram: nothing more of it is sent on, so that it cannot be
// put together (RFC 5722, RFC 8200 section 4.5).
func (d *datagram) take(f *header.Fragment) (Drop, bool) {
	end := uint32(f.Offset + f.Len)
	r := run{uint16(f.Offset / 8), uint16((end + 7) / 8)}
	if d.broken {
		return DropFragmentOverlap, false
	}
	at := 0 // the first run that ends behind where r begins
	for at < int(d.n) && d.run[at].to <= r.from {
		at++
	}
	next := at < int(d.n)
	if next && d.run[at].from <= r.from && r.to <= d.run[at].to && d.agrees(end, f.More) {
		return DropFragmentOverlap, false
	}
	if next && d.run[at].from < r.to || !d.agrees(end, f.More) {
		d.broken = true
		return DropFragmentOverlap, false
	}
	before, after := at > 0 && d.run[at-1].to == r.from, next && d.run[at].from == r.to
	switch {
	case before && after:
		d.run[at-1].to = d.run[at].to
		copy(d.run[at:], d.run[at+1:d.n])
		d.n--
	case before:
		d.run[at-1].to = r.to
	case after:
		d.run[at].from = r.from
	case d.n == maxRuns:
		return DropFragmentLimit, false
	default:
		copy(d.run[at+1:], d.run[at:d.n])
		d.run[at] = r
		d.n++
	}
	if !f.More {
		d.end = end
	}
	return 0, true
}

// agrees says whether a fragment that ends at end fits what is known of the
// datagram's end.
func (d *datagram) agrees(end uint32, more bool) bool {
	switch {
	case more:
		return d.end == 0 || end < d.end
	case d.end > 0:
		return end == d.end
	}
	return d.n == 0 || uint32(d.run[d.n-1].to) <= (end+7)/8
}
