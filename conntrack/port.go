package conntrack

import (
	"sync/atomic"
)

// cursor is where port rotation stands for the (SNAT address, endpoint address,
// endpoint port, protocol) that hash to it. That two share one does no harm: each
// skips some ports.
type cursor struct {
	at atomic.Uint32
	_  uint32
	// exhausted is a group's tag<<32 | the tick until which it is taken to have no
	// fresh port.
	exhausted atomic.Uint64
}

const (
	cursorCount = 1 << 16
	// scanFresh is how many ports Create looks at for a fresh one before it takes
	// one whose flow is over; the default range has 4536. scanExhausted is how many
	// it looks at while the group is known to have none.
	scanFresh     = 8192
	scanExhausted = 256
	// exhaustedFor is how long a group is taken to have no fresh port: exhaustion
	// costs one long scan a second, not one per packet.
	exhaustedFor = TicksPerSecond
)

type linkResult uint8

const (
	linked        linkResult = iota
	linkContended            // lost to another worker; the entry was exposed
	linkAgain                // lost to another worker; nothing was exposed
	linkNoPort
	linkNoSlot // no room in the index; the entry may have been exposed
)

// linkReverse links the reverse entry of a connection. Its uniqueness is the
// allocation of the port.
func (w *Worker) linkReverse(conn uint32, f *NewFlow) linkResult {
	switch {
	case oneWay(f.Mode):
		return linked
	case f.Mode == ModeDNAT:
		return w.linkDirect(conn)
	}
	t := w.t
	key := &t.entries[2*conn+1].Key
	group := f.draft.group
	c := t.cursor(group)
	tag := group >> 32
	n := uint32(f.PortHi) - uint32(f.PortLo) + 1
	known := c.knownExhausted(tag, f.Tick)
	limit := min(n, scanFresh)
	if known {
		limit = min(n, scanExhausted)
	}
	var over Ref // the first that may be taken again: the longest ago taken
	var overState uint32
	var behind uint32 // how many were looked at since
	for range limit {
		behind++
		setDstPort(key, f.portAt(group, f.draft.step(c)))
		h := t.Hash(key)
		r := t.find(h, key)
		if r == 0 {
			return w.linkPort(conn, h)
		}
		if over != 0 {
			continue
		}
		s := atomic.LoadUint32(&t.Conn(r).state)
		if t.Conn(r).acceptsSYN(s, f.Seq, f.TSval, f.HasTS) {
			over, overState, behind = r, s, 0
			if known {
				break
			}
		}
	}
	if !known {
		c.exhausted.Store(tag<<32 | uint64(f.Tick+exhaustedFor))
	}
	if over == 0 {
		return linkNoPort
	}
	c.at.Add(-behind) // the next look begins behind the one taken
	return w.takeOver(conn, over, overState)
}

// takeOver ends the flow of entry old, which is over and was in state word s, and
// takes its port for conn.
func (w *Worker) takeOver(conn uint32, old Ref, s uint32) linkResult {
	t := w.t
	key := &t.entries[2*conn+1].Key
	*key = t.entries[old-1].Key
	if !w.unlinkIn(old.Conn(), s) {
		return linkAgain
	}
	w.count.reused.Add(1)
	return w.linkPort(conn, t.Hash(key))
}

// linkPort links the reverse entry with the port now in its key.
func (w *Worker) linkPort(conn uint32, h uint64) linkResult {
	w.t.complete(conn)
	switch _, result := w.t.insert(h, reverseRef(conn), false); result {
	case inserted:
		return linked
	case exists:
		return linkContended
	}
	return linkNoSlot
}

// linkDirect links a reverse entry that keeps the client's address and port.
func (w *Worker) linkDirect(conn uint32) linkResult {
	t := w.t
	key := &t.entries[2*conn+1].Key
	h := t.Hash(key)
	if r := t.find(h, key); r != 0 {
		s := atomic.LoadUint32(&t.Conn(r).state)
		if !portReusable(s) {
			return linkNoPort
		}
		// The client has given that connection up, or it could not use its port.
		if !w.unlinkIn(r.Conn(), s) {
			return linkAgain
		}
	}
	return w.linkPort(conn, h)
}

func (c *cursor) knownExhausted(tag uint64, tick uint32) bool {
	e := c.exhausted.Load()
	return e != 0 && e>>32 == tag && int32(uint32(e)-tick) > 0
}

func setDstPort(k *Key, port uint16) {
	k.W[4] = k.W[4]&^(0xffff<<16) | uint64(swap16(port))<<16
}
