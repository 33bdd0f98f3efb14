package conntrack

import (
	"math/bits"
	"net/netip"
	"sync/atomic"

	"github.com/weirlb/weir/conntrack/flowstate"
)

// NewFlow describes a new connection for Create. Its size counts: a caller has several, each in
// cache lines of its own.
type NewFlow struct {
	Client     Key            // of the packet as received: client to frontend
	Endpoint   netip.AddrPort // where it goes
	EndpointID uint32         // the caller's number of it
	ServiceID  uint32
	// NextHop is the word for packets to the endpoint, as of [Table.NextHop]; 0: not known.
	NextHop uint64
	// SNAT is the source address for ModeNAT, and of the outer header for
	// ModeIPIP and ModeGUE (which may do without). PortLo to PortHi is the range,
	// both ends included, of which ModeNAT takes a port that is not in Except. A range whose end is
	// below its begin goes on at FirstPort behind port 65535.
	SNAT           netip.Addr
	Except         *PortSet
	PortLo, PortHi uint16
	Mode           Mode
	HasTS          bool
	// Established says that the connection is known to be older than the table:
	// TCP without a SYN, in the modes that can take that up.
	Established bool
	// Watched sets FlagWatched, where there is a reverse entry.
	Watched bool
	// Seq and TSval are those of the SYN (see [Timestamp]): they decide whether an
	// endpoint in TIME_WAIT would take it.
	Seq   uint32
	TSval uint32 // if HasTS
	Tick  uint32
	// Keep says whose SNAT ports the connection leaves alone.
	Keep Keep

	prefetched prefetched
}

// Outcome is the result of a Create.
type Outcome uint8

// Outcomes.
const (
	Created Outcome = iota
	// Existed: the tuple has a connection, perhaps since a moment ago by another
	// worker. The Ref is its entry, which is a reverse entry if the client's tuple is that
	// of an endpoint's answer.
	Existed
	// NoPort: every port of the range is in use towards this endpoint, by flows that keep
	// theirs (see [NewFlow.Keep] and PortClass). For ModeDNAT: another connection of this
	// client's port goes to the same endpoint by another frontend, so that answers would be
	// ambiguous.
	NoPort
	// Full: no room, and nothing that eviction could take (see the package comment).
	Full
	// Invalid: the addresses are not of the same family or the port range is empty.
	Invalid
)

// maxAttempts bounds how often Create begins again when another worker was
// quicker. Each time another worker has got on, so that more is not to be seen.
const maxAttempts = 8

// Create makes a connection. The Ref is its forward entry. A caller that makes several
// calls [Worker.Prefetch] for each of them before, and then [Worker.PickPort].
func (w *Worker) Create(f *NewFlow) (Ref, Outcome) {
	t := w.t
	if !f.prefetched.valid {
		w.Prefetch(f, t.Hash(&f.Client))
		if r := t.index.find(f.prefetched.hash, &f.Client); r != 0 {
			w.count.existed.Add(1)
			return r, Existed
		}
	}
	f.prefetched.valid = false // its sources may change
	h := f.prefetched.hash
	if t.ports.refuses(f) {
		return 0, NoPort
	}
	for range maxAttempts {
		conn, ok := w.alloc(f.Tick)
		if !ok {
			w.count.full.Add(1)
			return 0, Full
		}
		if !t.write(conn, f) {
			w.release(conn)
			return 0, Invalid
		}
		switch w.linkReverse(conn, f) {
		case linkContended:
			w.retire(conn)
			continue
		case linkAgain:
			w.release(conn)
			continue
		case linkNoPort:
			w.release(conn)
			return 0, NoPort
		case linkNoSlot:
			w.retire(conn)
			w.count.full.Add(1)
			return 0, Full
		}
		return w.linkForward(conn, h, f)
	}
	return 0, NoPort
}

// linkForward publishes the connection by the forward entry. It fails if another worker has
// made a connection of the same tuple.
func (w *Worker) linkForward(conn uint32, h uint64, f *NewFlow) (Ref, Outcome) {
	t := w.t
	if w.rec != nil {
		w.rec.begin(conn, f.Tick)
	}
	r, result := t.index.insert(h, forwardRef(conn), true)
	if result == inserted {
		s := firstState(f)
		t.endpoints.add(f.EndpointID, endpointCounts(s))
		t.services.add(f.ServiceID, serviceCounts(s))
		w.count.created.Add(1)
		if w.rec != nil {
			w.rec.put(t, conn, s, CauseNone)
		}
		atomic.OrUint32(&t.conns[conn].state, flowstate.Published)
		return r, Created
	}
	if !f.Mode.DSR() {
		t.unlist(reverseRef(conn))
	}
	w.retire(conn)
	if result == exists {
		w.count.existed.Add(1)
		return r, Existed
	}
	w.count.full.Add(1)
	return 0, Full
}

// write fills a connection that is not yet visible: all but the SNAT port and the words
// that depend on it. It reports false if f makes no sense.
func (cs *cells) write(conn uint32, f *NewFlow) bool {
	fw, rv := &cs.entries[2*conn], &cs.entries[2*conn+1]
	fw.begin(&f.Client, f)
	rv.begin(&f.prefetched.reverse, f)
	switch f.Mode {
	case ModeNAT:
		if !f.hasPorts() {
			return false
		}
	case ModeL2DSR, ModeIPIP, ModeGUE:
		fw.setOuter(&rv.Key, f.SNAT.Unmap(), f.Endpoint.Addr().Unmap())
		rv.NewPorts = outerSum(fw, &rv.Key)
	}
	if f.Client.Family() == 0 || !f.Mode.DSR() && rv.Key.Family() != f.Client.Family() {
		return false
	}
	if f.Watched && !f.Mode.DSR() {
		rv.Flags = FlagWatched
	}
	c := &cs.conns[conn]
	// The publication of the entries orders these stores.
	storeRelaxed(&c.lastSeen, f.Tick)
	storeRelaxed(&c.created, f.Tick)
	storeRelaxed(&c.EndpointID, f.EndpointID)
	storeRelaxed(&c.ServiceID, f.ServiceID)
	storeRelaxed(&c.clientNext, f.Seq+1)
	storeRelaxed(&c.state, firstState(f))
	return true
}

// begin writes an entry of f, all but the recipe and the generation. Word by word: to copy
// words that have just been stored stalls.
func (e *Entry) begin(k *Key, f *NewFlow) {
	e.Key.W[0], e.Key.W[1], e.Key.W[2], e.Key.W[3], e.Key.W[4] = k.W[0], k.W[1], k.W[2], k.W[3], k.W[4]
	e.Addr4, e.NewPorts, e.AddrDelta, e.L4Delta = 0, 0, 0, 0
	e.Mode, e.Flags, e.seen = f.Mode, 0, f.Tick
}

func firstState(f *NewFlow) uint32 {
	var s uint32
	if f.Mode.DSR() {
		s = flowstate.ClientOnly
	}
	switch {
	case f.Client.Proto() == ProtoSCTP:
		return s | uint32(flowstate.SCTPInit)
	case f.Client.Proto() != ProtoTCP:
		return s | uint32(flowstate.Unreplied)
	case f.Established:
		return flowstate.Watched(s | uint32(flowstate.Established) | flowstate.Young)
	}
	return s | uint32(flowstate.SynSent) | flowstate.ClientKnown
}

// setOuter writes the recipe of a mode without translation. other is the key of the
// entry of the other direction, which such a connection does not have.
func (e *Entry) setOuter(other *Key, src, dst netip.Addr) {
	e.NewPorts = uint32(e.Key.W[4])
	if dst.Is4() {
		e.Addr4 = word4(dst) << 32
		if src.Is4() {
			e.Addr4 |= word4(src)
		}
		return
	}
	e.Flags |= FlagOuter6
	other.W[0], other.W[1] = words6(dst)
	if src.Is6() {
		other.W[2], other.W[3] = words6(src)
	}
}

// outerSum is a checksum, not 0, of a connection in a mode without translation, whose
// recipe does not follow from its keys. It is for the next process. The entry of the other
// direction holds it.
func outerSum(fw *Entry, other *Key) uint32 {
	const odd = 0x9e3779b97f4a7c15
	k, h := fw.Tuple(), uint64(fw.Kind())
	for i := range k.W {
		h = bits.RotateLeft64((h^k.W[i])*odd, 29)
		h = bits.RotateLeft64((h^other.W[i])*odd, 29)
	}
	if k.Family() == 4 || fw.Flags&FlagOuter6 == 0 {
		h = bits.RotateLeft64((h^fw.Addr4)*odd, 29)
	}
	h *= odd
	return uint32(h>>32) | 1
}

// complete writes both recipes from both keys.
func complete(fw, rv *Entry) {
	if fw.Key.Family() == 4 {
		complete4(fw, rv)
		return
	}
	toEndpoint, toClient := rv.Key.Reverse(), fw.Key.Reverse()
	fw.setNew(&toEndpoint)
	rv.setNew(&toClient)
}

// complete4 is complete of an IPv4 connection. The order of words does not matter to
// a one's complement sum, so each tuple is summed once.
func complete4(fw, rv *Entry) {
	const all = 4 * 0xffff // sum16(w) + sum16(^w)
	fw.Addr4, rv.Addr4 = bits.RotateLeft64(rv.Key.W[0], 32), bits.RotateLeft64(fw.Key.W[0], 32)
	fw.NewPorts, rv.NewPorts = bits.RotateLeft32(uint32(rv.Key.W[4]), 16), bits.RotateLeft32(uint32(fw.Key.W[4]), 16)
	client, endpoint := sum16(fw.Key.W[0]), sum16(rv.Key.W[0])
	there, back := all-client+endpoint, all-endpoint+client
	fw.AddrDelta, rv.AddrDelta = fold16(there), fold16(back)
	ports, newPorts := sum16(uint64(uint32(fw.Key.W[4]))), sum16(uint64(uint32(rv.Key.W[4])))
	fw.L4Delta = fold16(there + 2*0xffff - ports + newPorts)
	rv.L4Delta = fold16(back + 2*0xffff - newPorts + ports)
}
