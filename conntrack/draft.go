package conntrack

import "net/netip"

// draft is what of a new connection is known before Create touches the table: which
// lines of memory that will need.
type draft struct {
	hash    uint64 // of NewFlow.Client
	reverse Key    // of the endpoint's packets, in ModeNAT with port 0; none in one-way modes
	group   uint64 // hash of reverse
	at      uint32 // the first step of the port's rotation, if drawn
	planned bool
	drawn   bool
}

// Plan is the first step of Create, for who has several connections to make: Plan for
// each of them, then Draw for each, then Create for each. The lines of memory that one
// needs, most of them in no cache, are on their way while the others are worked on.
// h is the Hash of f.Client; f stays as it is until Create.
func (w *Worker) Plan(f *NewFlow, h uint64) {
	t, d := w.t, &f.draft
	d.hash, d.planned, d.drawn = h, true, false
	switch f.Mode {
	case ModeNAT:
		d.reverse = MakeKey(f.Endpoint, netip.AddrPortFrom(f.SNAT, 0), f.Client.Proto())
		d.group = t.Hash(&d.reverse)
		prefetchCursor(t.cursor(d.group))
	case ModeDNAT:
		d.reverse = MakeKey(f.Endpoint, f.Client.Src(), f.Client.Proto())
		d.group = t.Hash(&d.reverse)
		prefetchBuckets(&t.buckets[0], uint64(len(t.buckets)), &d.group, 1)
	default:
		d.reverse = Key{}
	}
}

// Draw is the second step: it draws the port that Create will try first. A port that
// is drawn in vain is skipped.
func (w *Worker) Draw(f *NewFlow) {
	t, d := w.t, &f.draft
	if f.Mode != ModeNAT || !f.hasPorts() {
		return
	}
	d.at, d.drawn = t.cursor(d.group).at.Add(1), true
	key := d.reverse
	setDstPort(&key, f.portAt(d.group, d.at))
	h := t.Hash(&key)
	prefetchBuckets(&t.buckets[0], uint64(len(t.buckets)), &h, 1)
}

// step is the next step of the rotation: the one that was drawn first.
func (d *draft) step(c *cursor) uint32 {
	if d.drawn {
		d.drawn = false
		return d.at
	}
	return c.at.Add(1)
}

func (f *NewFlow) hasPorts() bool { return f.PortLo != 0 && f.PortLo <= f.PortHi }

// ports is how many ports the range has.
func (f *NewFlow) ports() uint32 { return uint32(f.PortHi) - uint32(f.PortLo) + 1 }

// portAt is the port at a step of a group's rotation. Each group begins elsewhere in
// the range (RFC 6056, algorithm 4).
func (f *NewFlow) portAt(group uint64, step uint32) uint16 {
	return uint16(uint32(f.PortLo) + (uint32(group>>16)+step)%f.ports())
}

func (t *Table) cursor(group uint64) *cursor { return &t.cursors[group%uint64(len(t.cursors))] }
