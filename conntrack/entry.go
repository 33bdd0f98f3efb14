package conntrack

import (
	"net/netip"
	"sync/atomic"

	"github.com/weirlb/weir/conntrack/flowstate"
)

// TicksPerSecond is the rate of the coarse clock (see [Table.Tick]): the caller
// reads it once per batch and passes it down.
const TicksPerSecond = flowstate.TicksPerSecond

// Ref names an entry: its number + 1, so that 0 is none. A worker may use a Ref
// until its next [Worker.Quiesce].
type Ref uint32

// Conn returns the number of the connection that r belongs to.
func (r Ref) Conn() uint32 { return uint32(r-1) >> 1 }

// Forward reports whether r is the direction from the client to the frontend.
func (r Ref) Forward() bool { return (r-1)&1 == 0 }

// Other returns the entry of the other direction.
func (r Ref) Other() Ref { return (r - 1) ^ 1 + 1 }

func forwardRef(conn uint32) Ref { return Ref(conn<<1) + 1 }
func reverseRef(conn uint32) Ref { return Ref(conn<<1) + 2 }

// Mode says how a packet of a flow is forwarded.
type Mode uint8

// Modes. A flow of the first two has a reverse entry; of the others the table
// sees the client's packets only.
const (
	ModeNAT   Mode = 1 + iota // destination and source translated
	ModeDNAT                  // destination translated, the client's address kept
	ModeL2DSR                 // only the MAC addresses change
	ModeIPIP                  // IP in IP to the endpoint
	ModeGUE                   // UDP encapsulation to the endpoint
)

// DSR reports whether the answers of flows of the mode bypass Weir: direct server return.
func (m Mode) DSR() bool { return m >= ModeL2DSR }

// FlagOuter6 says that the addresses of the outer header of ModeIPIP and ModeGUE,
// or of ModeL2DSR's endpoint, are IPv6 ones (see [Table.NewAddrs6]). The outer family
// may differ from the key's.
const FlagOuter6 = 1

// FlagWatched on the reverse entry of a translated flow says that the caller wants to see
// the endpoint's answers (see [NewFlow.Watched]).
const FlagWatched = 2

// Entry is a direction of a connection: the key and everything needed to rewrite a packet
// that matches it, in a cache line. It is immutable while a
// look-up can return it, but for seen, for the word that [Table.NextHop] returns, Key.W[1]
// of an IPv4 entry and otherwise a word of Addr4 that is not in use, and for Key.W[2] of
// an IPv4 entry, see [Entry.Note].
//
// The new addresses of an IPv6 packet are not in it but in the entry of the other
// direction, which lies next to it: they are the key of that entry, see [Table.NewAddrs6].
//
// In the modes without translation NewPorts are the packet's own, and the deltas are 0. The
// addresses are those of the outer header or, for ModeL2DSR, the endpoint's as destination.
type Entry struct {
	Key   Key    // of the packet as received
	Addr4 uint64 // IPv4: the 8 bytes to store at ip+12
	// NewPorts are the 4 port bytes to store at l4 (little-endian load).
	NewPorts uint32
	// AddrDelta is the one's complement sum of ~old+new over the addresses,
	// L4Delta that over addresses and ports (RFC 1624, 16-bit words as loaded
	// little-endian): a checksum c becomes ^fold(uint32(^c) + delta). AddrDelta
	// serves the IPv4 header, and a TCP or UDP checksum that holds the
	// pseudo-header's sum only.
	AddrDelta uint16
	L4Delta   uint16
	Mode      Mode
	Flags     uint8
	gen       uint16 // see Generation in the package comment
	seen      uint32 // tick of the last packet on the fast path, see steady.go
}

// Kind is the mode and the flags of an entry: those of the entries whose packets need
// nothing else have names.
type Kind uint16

// Kinds of entries. The endpoint of KindL2DSR6 has an IPv6 address, the outer headers of
// KindIPIP and KindGUE are IPv4.
const (
	KindNAT    = Kind(ModeNAT)
	KindDNAT   = Kind(ModeDNAT)
	KindL2DSR  = Kind(ModeL2DSR)
	KindIPIP   = Kind(ModeIPIP)
	KindGUE    = Kind(ModeGUE)
	KindL2DSR6 = KindL2DSR | FlagOuter6<<8
)

// Kind returns the entry's mode and flags.
func (e *Entry) Kind() Kind { return Kind(e.Mode) | Kind(e.Flags)<<8 }

// cells are the connections and their entries.
type cells struct {
	conns    []Conn
	entries  []Entry // 2 per connection: forward, reverse
	nextHops uint64  // those of Config if the table is in Config.Memory
	_        [64]byte
	// unsettled counts the clearings of next-hop words, see steady.go.
	unsettled atomic.Uint32
	_         [60]byte
}

// MaxFlows returns the number of connections that the table can hold.
func (cs *cells) MaxFlows() int { return len(cs.conns) }

// Entry returns the entry that r names. It must not be written.
func (cs *cells) Entry(r Ref) *Entry { return &cs.entries[r-1] }

// Entries returns all entries, that of a Ref at the Ref less 1. They must not be written,
// and only an entry that a look-up has returned may be read.
func (cs *cells) Entries() []Entry { return cs.entries }

// Changing is [Table.Conn] without that note.
func (cs *cells) Changing(r Ref) *Conn { return &cs.conns[r.Conn()] }

// EndpointAddr returns the endpoint that a connection was sent to.
func (cs *cells) EndpointAddr(r Ref) netip.AddrPort {
	return cs.NewDst(forwardRef(r.Conn()))
}

// NewAddrs6 returns the addresses that the recipe of entry r writes into an IPv6 packet, or
// with FlagOuter6 into the outer IPv6 header. Source and destination are two little-endian
// words each. They are the other entry's key read backwards; in a mode without a reverse
// direction that entry holds nothing else.
func (cs *cells) NewAddrs6(r Ref) (src, dst [2]uint64) {
	k := &cs.entries[(r-1)^1].Key
	return [2]uint64{k.W[2], k.W[3]}, [2]uint64{k.W[0], k.W[1]}
}

// NewKey6 returns the key that [Table.NewAddrs6] reads: words 2 and 3 are the new source,
// words 0 and 1 the new destination. The other words are not the caller's.
func (cs *cells) NewKey6(r Ref) *Key { return &cs.entries[(r-1)^1].Key }

// NewSrc returns the source that the recipe of entry r writes. It is invalid for a
// mode that writes none.
func (cs *cells) NewSrc(r Ref) netip.AddrPort { k := cs.NewTuple(r); return k.Src() }

// NewDst returns the destination that the recipe of entry r writes: for a forward
// entry the endpoint, for a reverse entry the client.
func (cs *cells) NewDst(r Ref) netip.AddrPort { k := cs.NewTuple(r); return k.Dst() }

// NewTuple returns the tuple of a packet that the recipe of entry r has rewritten. In a mode
// without translation its addresses are those of the outer header.
func (cs *cells) NewTuple(r Ref) Key {
	e := &cs.entries[r-1]
	k := Key{W: [5]uint64{4: e.Key.W[4]&^0xffffffff | uint64(e.NewPorts)}}
	family := e.Key.Family()
	if e.Mode.DSR() {
		family = 4
		if e.Flags&FlagOuter6 != 0 {
			family = 6
		}
		k.W[4] = k.W[4]&^(0xff<<40) | uint64(family)<<40
	}
	if family == 4 {
		k.W[0] = e.Addr4
		return k
	}
	src, dst := cs.NewAddrs6(r)
	k.W[0], k.W[1], k.W[2], k.W[3] = src[0], src[1], dst[0], dst[1]
	return k
}

// setNew writes the recipe that turns e.Key into k.
func (e *Entry) setNew(k *Key) {
	e.NewPorts = uint32(k.W[4])
	addr := sum16(^e.Key.W[0]) + sum16(k.W[0])
	e.Addr4 = 0
	if e.Key.Family() == 4 {
		e.Addr4 = k.W[0]
	} else {
		for i := 1; i < 4; i++ {
			addr += sum16(^e.Key.W[i]) + sum16(k.W[i])
		}
	}
	ports := sum16(uint64(^uint32(e.Key.W[4]))) + sum16(uint64(e.NewPorts))
	e.AddrDelta = fold16(addr)
	e.L4Delta = fold16(addr + ports)
}

// sum16 adds the four 16-bit words of w.
func sum16(w uint64) uint64 {
	return w&0xffff + w>>16&0xffff + w>>32&0xffff + w>>48
}

// fold16 reduces a one's complement sum to 16 bits.
func fold16(s uint64) uint16 {
	s = s>>16 + s&0xffff
	s = s>>16 + s&0xffff
	return uint16(s>>16 + s)
}

// Conn holds the words of a connection that change, in half a cache line. All access is
// atomic.
type Conn struct {
	state    uint32 // see package flowstate; published is the last to be set
	lastSeen uint32 // tick
	// EndpointID and ServiceID are the caller's numbers. After a restore both are
	// [NoID] until [Table.SetIDs].
	EndpointID uint32
	ServiceID  uint32
	created    uint32 // tick
	// Sequence numbers of TCP: the next number after the last that each side is known to
	// have sent. While the connection is established they are sampled, see Sample. After a
	// FIN they are the number after it.
	clientNext   uint32
	endpointNext uint32
	// extra is a timestamp of the client or the number after a SYN, see the bits of
	// state. Of SCTP clientNext and extra are the tags, see nextSCTP. Of UDP endpointNext is
	// the tick of the first answer.
	extra uint32
}

// NoID is the EndpointID and ServiceID of a connection for which no number is
// known.
const NoID = ^uint32(0)

// freedID replaces EndpointID when a connection is deleted, so that a late
// SetIDs finds another value than it has read.
const freedID = NoID - 1

// LastSeen returns the tick of the last packet of either direction, of those on the fast
// path as of the last [Table.Conn].
func (c *Conn) LastSeen() uint32 { return atomic.LoadUint32(&c.lastSeen) }

// Idle returns for how many ticks there was no packet at tick now. Another worker's
// clock may be a little ahead: then it is 0.
func (c *Conn) Idle(now uint32) uint32 {
	return uint32(max(0, int32(now-c.LastSeen())))
}

// Created returns the tick of creation.
func (c *Conn) Created() uint32 { return atomic.LoadUint32(&c.created) }

// Touch notes a packet. It stores only when the tick has changed, so that the
// line stays clean for the other workers.
func (c *Conn) Touch(tick uint32) {
	if atomic.LoadUint32(&c.lastSeen) != tick {
		storeRelaxed(&c.lastSeen, tick)
	}
}

// Steady reports whether a packet of direction dir (0 forward, 1 reverse) changes nothing
// about the connection but the time of the last packet: a packet of an established TCP
// connection without SYN, FIN and RST, or of a UDP flow but for the first answer.
// [Table.TrackTCP] and [Table.TrackUDP] need not be called then, only [Entry.Touch] and,
// once per direction and tick and at each [Milestone], [Conn.Sample]. Of IPv4 [Entry.Note]
// says whether the first segment of a tick needs Sample.
func (c *Conn) Steady(dir uint32) bool {
	return flowstate.IsSteadyIn(atomic.LoadUint32(&c.state), dir)
}

// Generation tells connections apart that have the entry one after another.
func (e *Entry) Generation() uint16 { return e.gen }

// Settles reports whether [Table.Settle] of a shared table does anything in direction dir, 0 from
// the client.
func (c *Conn) Settles(dir uint32) bool {
	s := atomic.LoadUint32(&c.state)
	return flowstate.IsSteadyIn(s, dir) || flowstate.IsFollowed(s)
}

// State returns the state of the connection, StateNone when it was deleted.
func (c *Conn) State() flowstate.State {
	return flowstate.Of(atomic.LoadUint32(&c.state))
}

// idle returns for how many ticks there was no packet of the entry, as of [Entry.Touch].
func (e *Entry) idle(now uint32) uint32 {
	return uint32(max(0, int32(now-atomic.LoadUint32(&e.seen))))
}
