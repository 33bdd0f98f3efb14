package table

import (
	"cmp"
	"fmt"
	"iter"
	"net/netip"
	"slices"
)

// A frontend may have a range of ports, as a single entry. The more specific frontend has a port:
// one with the port alone, else that with the fewest ports, else that with the lower first port.

// ranges are the frontends of a publication that have more ports than one, immutable.
type ranges struct {
	entries []*FrontendEntry // by compareRanges
	spans   []span           // by address, protocol and port
}

// span is a range of ports of an address and protocol that a frontend has to itself.
type span struct {
	key         Key // with port 0
	first, last uint16
	entry       *FrontendEntry
}

const lastPortShift = 32 // of the last port in Key.W2

// Key is the key of the frontend in a [Snapshot].
func (f *Frontend) Key() Key { return MakeRangeKey(f.AddrPort, f.LastPort, f.Proto) }

// MakeRangeKey is the key of a frontend whose ports are those from that of ap to last, which is
// that of [MakeKey] where last is not above the port of ap.
func MakeRangeKey(ap netip.AddrPort, last uint16, proto uint8) Key {
	k := MakeKey(ap, proto)
	if last > ap.Port() {
		k.W2 |= uint64(last) << lastPortShift
	}
	return k
}

// firstPort is the port, or the first of a range.
func (k *Key) firstPort() uint16 { return rawPort(uint16(k.W2)) }

// lastPort is the last port of a range, 0 for the key of a single port.
func (k *Key) lastPort() uint16 { return uint16(k.W2 >> lastPortShift) }

// withoutPort is the key of all ports of the address and protocol.
func (k *Key) withoutPort() Key { return Key{k.W0, k.W1, k.W2 & 0xffff0000} }

// find is the frontend that has the port of k, nil if no range does.
func (r *ranges) find(k *Key) *FrontendEntry {
	all, port := k.withoutPort(), k.firstPort()
	lo, hi := 0, len(r.spans)
	for lo < hi { // the first span behind the port
		mid := int(uint(lo+hi) >> 1)
		if s := &r.spans[mid]; compareKeys(&s.key, &all) < 0 || s.key == all && s.first <= port {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	if lo == 0 {
		return nil
	}
	if s := &r.spans[lo-1]; s.key == all && port <= s.last {
		return s.entry
	}
	return nil
}

// with are the ranges after a change. was and is are the entries of a key before and after.
func (r *ranges) with(changed []Key, was, is func(*Key) *FrontendEntry) *ranges {
	if !slices.ContainsFunc(changed, func(k Key) bool { return k.lastPort() != 0 }) {
		return r
	}
	gone, next := map[*FrontendEntry]bool{}, &ranges{}
	for i := range changed {
		if k := &changed[i]; k.lastPort() != 0 {
			gone[was(k)] = true
			if f := is(k); f != nil {
				next.entries = append(next.entries, f)
			}
		}
	}
	for _, f := range r.entries {
		if !gone[f] {
			next.entries = append(next.entries, f)
		}
	}
	next.sort()
	return next
}

// sort makes the spans of the entries.
func (r *ranges) sort() {
	slices.SortFunc(r.entries, compareRanges)
	for begin := 0; begin < len(r.entries); {
		end, key := begin+1, r.entries[begin].Key.withoutPort()
		for end < len(r.entries) && r.entries[end].Key.withoutPort() == key {
			end++
		}
		r.divide(key, r.entries[begin:end])
		begin = end
	}
}

// divide adds the spans of the ranges of an address and protocol, the most specific first.
func (r *ranges) divide(key Key, list []*FrontendEntry) {
	var taken []span // by port
	for _, f := range list {
		first, last := int(f.Key.firstPort()), int(f.Key.lastPort())
		at, _ := slices.BinarySearchFunc(taken, first, func(s span, port int) int { return cmp.Compare(int(s.last), port) })
		var own []span
		for i := at; first <= last; i++ {
			end := last
			if i < len(taken) {
				end = min(last, int(taken[i].first)-1)
			}
			if first <= end {
				own = append(own, span{key, uint16(first), uint16(end), f})
			}
			if i == len(taken) {
				break
			}
			first = max(first, int(taken[i].last)+1)
		}
		taken = append(taken, own...)
		slices.SortFunc(taken, func(a, b span) int { return cmp.Compare(a.first, b.first) })
	}
	r.spans = append(r.spans, taken...)
}

// maxCompared bounds the ranges of an address and protocol that overlaps looks at.
const maxCompared = 64

// overlaps adds the ranges that another Service has a part of. A range within another is a more specific
// one, which is no conflict.
func (r *ranges) overlaps(out []ConflictError) []ConflictError {
	if r == nil {
		return out
	}
	for i, f := range r.entries {
		if o := r.overlapping(i); o != nil {
			out = append(out, ConflictError{f.AddrPort, f.LastPort, f.Proto, f.ServiceName, o.ServiceName, o.Address()})
		}
	}
	return out
}

// overlapping is the range of another Service that has a part of an entry, nil if there is none.
func (r *ranges) overlapping(i int) *FrontendEntry {
	f := r.entries[i]
	key, first, last := f.Key.withoutPort(), f.Key.firstPort(), f.Key.lastPort()
	for j := i - 1; j >= max(0, i-maxCompared) && r.entries[j].Key.withoutPort() == key; j-- { // they go before
		o := r.entries[j]
		from, to := o.Key.firstPort(), o.Key.lastPort()
		if o.ServiceName != f.ServiceName && from <= last && first <= to && (from < first || to > last) {
			return o
		}
	}
	return nil
}

// Overlapping is the range of another Service that has a part of the ports of a frontend of the snapshot, nil if there
// is none.
func (s *Snapshot) Overlapping(f *FrontendEntry) *FrontendEntry {
	if i, found := slices.BinarySearchFunc(s.ranges.entries, f, compareRanges); found {
		return s.ranges.overlapping(i)
	}
	return nil
}

// compareRanges orders by address and protocol, the more specific first.
func compareRanges(a, b *FrontendEntry) int {
	ka, kb := a.Key.withoutPort(), b.Key.withoutPort()
	firstA, firstB := a.Key.firstPort(), b.Key.firstPort()
	return cmp.Or(compareKeys(&ka, &kb), cmp.Compare(a.Key.lastPort()-firstA, b.Key.lastPort()-firstB),
		cmp.Compare(firstA, firstB))
}

func compareKeys(a, b *Key) int {
	return cmp.Or(cmp.Compare(a.W0, b.W0), cmp.Compare(a.W1, b.W1), cmp.Compare(a.W2, b.W2))
}

// Address is the address and port as text, of a range ADDRESS:FIRST-LAST.
func (f *FrontendEntry) Address() string { return AddressText(f.AddrPort, f.LastPort) }

// AddressText is an address and port, or a range of ports to last, as text.
func AddressText(ap netip.AddrPort, last uint16) string {
	if last <= ap.Port() {
		return ap.String()
	}
	return fmt.Sprintf("%s-%d", ap, last)
}

// Target is the endpoint's address with the port that packets to a port of the frontend get: of a
// range the same port.
func (f *FrontendEntry) Target(ep *EndpointEntry, port uint16) netip.AddrPort {
	if f.LastPort == 0 {
		return ep.AddrPort
	}
	return netip.AddrPortFrom(ep.AddrPort.Addr(), port)
}

// ListedPort is the port with which the Service port lists endpoints of a range, 0 for a frontend
// of a single port.
func (f *FrontendEntry) ListedPort() uint16 { return f.endpointPort }

// Listed is an endpoint's address as the Service port lists it, for an address and port that
// packets to the frontend go to: see Target.
func (f *FrontendEntry) Listed(target netip.AddrPort) netip.AddrPort {
	if f.LastPort == 0 {
		return target
	}
	return netip.AddrPortFrom(target.Addr(), f.endpointPort)
}

// Ranges finds the range of ports that a packet is to, among those of keys.
type Ranges struct{ of ranges }

// NewRanges makes the Ranges of those keys that are of ranges.
func NewRanges(keys iter.Seq[Key]) *Ranges {
	r := &Ranges{}
	for k := range keys {
		if k.lastPort() != 0 {
			r.of.entries = append(r.of.entries, &FrontendEntry{Key: k})
		}
	}
	r.of.sort()
	return r
}

// Find is the key of the range for packets to k, and else k.
func (r *Ranges) Find(k Key) Key {
	if len(r.of.spans) > 0 {
		if f := r.of.find(&k); f != nil {
			return f.Key
		}
	}
	return k
}
