package route

import (
	"encoding/binary"
	"math/bits"
	"net/netip"
	"sync/atomic"
)

// State of an adjacency.
type State uint8

// States of an adjacency. Only Valid has a MAC to send to.
const (
	Unresolved State = iota // nothing known, not asked yet
	Resolving               // the kernel is asking
	Valid
	Failed // nobody answered; a packet to an endpoint or a gateway asks again
)

var stateNames = [...]string{"unresolved", "resolving", "valid", "failed"}

func (s State) String() string {
	if int(s) < len(stateNames) {
		return stateNames[s]
	}
	return "unknown"
}

// Adjacency is a next hop behind a port: everything needed to put a packet on the wire, in
// a cache line. The words are loaded and stored atomically; only
// the watcher writes them, but for the tick of last use, which workers write.
type Adjacency struct {
	dst  atomic.Uint64 // MAC in bits 0..47 (first byte lowest), State in 48..55
	src  atomic.Uint64 // MAC in bits 0..47, port in 48..63
	mtu  atomic.Uint32
	used atomic.Uint32
	hop  [2]atomic.Uint64 // As16 of the next hop, little-endian words
	port atomic.Uint32    // port + 1; 0 = the slot is free
	// stamp is the generation of the next hop, see Stamp.
	stamp  atomic.Uint32
	needed atomic.Bool // an endpoint or a gateway is there: see Resolve
	probes atomic.Uint32
	failed atomic.Uint32 // the last of probes whose resolution has failed
	silent atomic.Bool   // see Silent
}

const macMask = 1<<48 - 1

// Dst gives the MAC to send to, first byte in the lowest bits, and the state.
// One load: the MAC belongs to the state.
func (a *Adjacency) Dst() (mac uint64, s State) {
	w := a.dst.Load()
	return w & macMask, State(w >> 48)
}

// Src gives the MAC to send from, first byte in the lowest bits, and the port.
func (a *Adjacency) Src() (mac uint64, port int) {
	w := a.src.Load()
	return w & macMask, int(w >> 48)
}

// MTU of the port in bytes.
func (a *Adjacency) MTU() uint32 { return a.mtu.Load() }

// State of the adjacency.
func (a *Adjacency) State() State { return State(a.dst.Load() >> 48) }

// Stamp is the generation of the adjacency. A flow stores it with the number of the
// adjacency and the MTU of the route (see NextHop in steady.go of conntrack); that word is
// valid as long as the stamp stays the same. The stamp is another
//
//   - when the routes change, if they led to a destination by this next hop, and lead there
//     by another next hop or with another MTU now. Flows over other next hops keep theirs;
//   - when the number is given up, if the next hop has ever answered.
//
// A change of MAC address, state, or the port's MTU does not change it: these words are
// replaced in place. The reader loads the stamp, then uses [Table.Lookup]'s answer, and
// stores both if the table is still current ([Watcher.Load]). A stamp is never 0, and that
// of number 0 is never another's.
func (a *Adjacency) Stamp() uint32 { return a.stamp.Load() }

// Needed reports whether the watcher knows that an endpoint or a gateway is there.
func (a *Adjacency) Needed() bool { return a.needed.Load() }

// Probes counts how often the kernel was asked for the next hops of this slot. An Unresolved
// adjacency whose count has grown was asked for, and the answer is lost: see Resolve.
func (a *Adjacency) Probes() uint32 { return a.probes.Load() }

// FailedSince reports whether nobody has answered a resolution that began after probes were
// counted. The kernel asks for three seconds, and asks again by itself for a neighbor that it
// keeps: a failure alone may be of a time long before.
func (a *Adjacency) FailedSince(probes uint32) bool { return int32(a.failed.Load()-probes) > 0 }

// Silent reports whether the next hop has not answered the last resolution that has ended. It
// remains true while the kernel asks again.
func (a *Adjacency) Silent() bool { return a.silent.Load() }

// Is reports whether the adjacency is that of a next hop behind a port. After it has
// reported true, earlier loads were the next hop's too.
func (a *Adjacency) Is(port int, nextHop netip.Addr) bool { return a.is(makeHopKey(port, nextHop)) }

// Touch notes that a worker uses the adjacency, in any state: an adjacency that is not
// touched for Config.IdleAfter is released. tick is any coarse clock; it
// is stored only when it changed.
func (a *Adjacency) Touch(tick uint32) {
	if a.used.Load() != tick {
		a.used.Store(tick)
	}
}

// NextHop is the address that the adjacency is for; invalid for a free slot.
func (a *Adjacency) NextHop() netip.Addr {
	if a.port.Load() == 0 {
		return netip.Addr{}
	}
	var b [16]byte
	binary.LittleEndian.PutUint64(b[:], a.hop[0].Load())
	binary.LittleEndian.PutUint64(b[8:], a.hop[1].Load())
	return netip.AddrFrom16(b).Unmap()
}

// PutMACs writes the two addresses, as given by Dst and Src, at the start of
// an Ethernet frame.
func PutMACs(frame []byte, dst, src uint64) {
	_ = frame[11]
	binary.LittleEndian.PutUint64(frame, dst&macMask|src<<48)
	binary.LittleEndian.PutUint32(frame[8:], uint32(src>>16))
}

// MACWord is a MAC address as PutMACs takes it.
func MACWord(mac [6]byte) uint64 {
	return uint64(binary.LittleEndian.Uint32(mac[:])) | uint64(binary.LittleEndian.Uint16(mac[4:]))<<32
}

// hopKey identifies an adjacency.
type hopKey struct {
	w0, w1 uint64
	port   uint32 // port + 1
}

func makeHopKey(port int, nextHop netip.Addr) hopKey {
	b := nextHop.As16()
	return hopKey{
		w0: binary.LittleEndian.Uint64(b[:]), w1: binary.LittleEndian.Uint64(b[8:]), port: uint32(port) + 1,
	}
}

func (k hopKey) nextHop() netip.Addr {
	var b [16]byte
	binary.LittleEndian.PutUint64(b[:], k.w0)
	binary.LittleEndian.PutUint64(b[8:], k.w1)
	return netip.AddrFrom16(b).Unmap()
}

func (k hopKey) hash() uint64 {
	hi, lo := bits.Mul64(k.w0^0x9e3779b97f4a7c15^uint64(k.port), k.w1^0xd6e8feb86659fd93)
	hi, lo = bits.Mul64(hi^lo^k.w1, 0xa0761d6478bd642f)
	return hi ^ lo
}

// key is the adjacency's key; its port is 0 for a free slot.
func (a *Adjacency) key() hopKey {
	return hopKey{a.hop[0].Load(), a.hop[1].Load(), a.port.Load()}
}

func (a *Adjacency) is(k hopKey) bool {
	return a.port.Load() == k.port && a.hop[0].Load() == k.w0 && a.hop[1].Load() == k.w1
}

// hopIndex finds adjacencies by port and next hop: open addressing with
// linear probing. There is a single writer; readers see an entry completely or not at all,
// since the adjacency is written before its number.
type hopIndex struct {
	slots []atomic.Uint32 // number of the adjacency; 0 = empty, tombstone = was used
	tombs int             // writer's
}

const tombstone = ^uint32(0)

func newHopIndex(maxEntries int) *hopIndex {
	n := 1 << bits.Len(uint(maxEntries*2))
	return &hopIndex{slots: make([]atomic.Uint32, n)}
}

func (x *hopIndex) find(adj []Adjacency, k hopKey) (uint32, bool) {
	mask := uint64(len(x.slots) - 1)
	for i := k.hash(); ; i++ {
		switch n := x.slots[i&mask].Load(); n {
		case 0:
			return 0, false
		case tombstone:
		default:
			if adj[n].is(k) {
				return n, true
			}
		}
	}
}

func (x *hopIndex) insert(k hopKey, n uint32) {
	mask := uint64(len(x.slots) - 1)
	for i := k.hash(); ; i++ {
		switch x.slots[i&mask].Load() {
		case tombstone:
			x.tombs--
			fallthrough
		case 0:
			x.slots[i&mask].Store(n)
			return
		}
	}
}

func (x *hopIndex) remove(k hopKey, n uint32) {
	mask := uint64(len(x.slots) - 1)
	for i := k.hash(); ; i++ {
		switch x.slots[i&mask].Load() {
		case 0:
			return
		case n:
			x.slots[i&mask].Store(tombstone)
			x.tombs++
			return
		}
	}
}
