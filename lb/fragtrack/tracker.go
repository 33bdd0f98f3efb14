// Package fragtrack follows datagrams that come in fragments: which datagrams they are,
// and which of their bytes have passed. Fragments are not put together. The first
// fragment has the ports, and the tracker keeps them for the later ones.
//
// A tracker belongs to a single worker. Its clock counts as conntrack.Table.Tick does.
package fragtrack

import "github.com/weirlb/weir/conntrack"

const (
	trackerSets = 512
	trackerWays = 4
	// maxTicks without a fragment end a datagram: a sender sends the fragments of a
	// datagram back to back.
	maxTicks = 5 * conntrack.TicksPerSecond
	// repeatTicks is the age up to which a second first fragment is a duplicate.
	repeatTicks = conntrack.TicksPerSecond / 4
)

// Tracker is a set-associative table of datagrams. A new datagram takes the place of
// the oldest of its set, so that a flood costs older datagrams and nothing else.
type Tracker struct {
	sets [trackerSets][trackerWays]Datagram
}

// Datagram is a datagram whose first fragment has come.
type Datagram struct {
	key        conntrack.Key
	born, last uint32 // ticks of the first fragment and of the latest

	// The tracker keeps the following for the worker, and reads none of it.

	Ports       uint32 // as loaded from the first fragment
	ID          uint32 // the identification that the worker writes
	IDRewritten bool   // ID is valid
	Punted      bool   // the kernel has the first fragment
	Echo        bool   // an echo request that the worker answers
	Proto       uint8

	passed
}

// Find returns the datagram of a key, nil when there is none. hash is the key's hash.
// The key is zero for no datagram.
func (t *Tracker) Find(hash uint64, k *conntrack.Key, tick uint32) *Datagram {
	set := &t.sets[hash%trackerSets]
	for i := range set {
		if d := &set[i]; d.key == *k {
			if tick-d.last >= maxTicks {
				*d = Datagram{}
				return nil
			}
			return d
		}
	}
	return nil
}

// Add makes room for a datagram. Preconditions: Find found none.
func (t *Tracker) Add(hash uint64, k *conntrack.Key, tick uint32) *Datagram {
	set := &t.sets[hash%trackerSets]
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
	*oldest = Datagram{key: *k, born: tick, last: tick}
	return oldest
}

// Repeats reports whether another first fragment is a duplicate. A later one is not: the
// sender has used the identification again, and some of the older datagram was lost.
func (d *Datagram) Repeats(tick uint32) bool { return tick-d.born < repeatTicks }

// Restart begins another datagram with the same key.
func (d *Datagram) Restart(tick uint32) { *d = Datagram{key: d.key, born: tick, last: tick} }

// Touch keeps the datagram for some seconds more.
func (d *Datagram) Touch(tick uint32) { d.last = tick }

// Forget frees the datagram's place and its identification.
func (d *Datagram) Forget() { *d = Datagram{} }
