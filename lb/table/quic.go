package table

import (
	"cmp"
	"encoding/binary"
	"net/netip"
	"slices"

	"github.com/weirlb/weir/conntrack"
)

// unroutable are the upper three bits of a connection ID that names no server
// (draft-ietf-quic-load-balancers section 3.1).
const unroutable = 7

// FollowsConnectionIDs reports whether new flows of the frontend go to the server that
// their QUIC connection ID names.
func (f *FrontendEntry) FollowsConnectionIDs() bool {
	return f.Policy != nil && f.Policy.QUICConnectionID.Length != 0 && f.Proto == conntrack.ProtoUDP
}

// CIDKey is the key of the server that a connection ID names: the bytes that name it, and
// the frontend's Service port and address family. ok is false if the ID is too short, or
// names no server. Precondition: FollowsConnectionIDs.
func (f *FrontendEntry) CIDKey(id []byte) (key [3]uint64, ok bool) {
	c := f.Policy.QUICConnectionID
	from, to := int(c.Offset), int(c.Offset)+int(c.Length)
	if len(id) < to {
		return key, false
	}
	var b [24]byte
	copy(b[:20], id[from:to])
	b[20], b[21] = c.Length, byte(f.Key.W2>>24)
	if c.Marked {
		// The server's configuration of the ID: each has separate IDs.
		if b[22] = id[0] >> 5; b[22] == unroutable {
			return key, false
		}
	}
	last := binary.LittleEndian.Uint64(b[16:])
	return [3]uint64{binary.LittleEndian.Uint64(b[:]), binary.LittleEndian.Uint64(b[8:]), mix(f.servicePort^seed6, last^seed7)}, true
}

// QUICEndpoint is the endpoint with a number if the frontend's Service has one, in the pool
// or without new clients. Only Services that follow
// connection IDs know theirs.
func (f *FrontendEntry) QUICEndpoint(number uint32) *EndpointEntry {
	if f.quicEndpoints == nil {
		return nil
	}
	list := f.quicEndpoints.byID
	at, ok := slices.BinarySearchFunc(list, number, func(e EndpointEntry, n uint32) int { return cmp.Compare(e.ID, n) })
	if !ok || list[at].Family != uint8(f.Key.W2>>24) {
		return nil
	}
	return &list[at]
}

// quicEndpoints are the UDP endpoints of a Service, immutable.
type quicEndpoints struct{ byID []EndpointEntry }

// setQUICEndpoints gives the frontends all endpoints of their Service, if it follows
// connection IDs. Precondition: the Service's list was checked.
func (b *builder) setQUICEndpoints(spec *Service, s, old *service) error {
	if s.policy == nil || s.policy.QUICConnectionID.Length == 0 {
		return nil
	}
	list, err := b.listQUICEndpoints(spec, s)
	if err != nil {
		return err
	}
	if old != nil && old.quicEndpoints != nil && slices.Equal(list, old.quicEndpoints.byID) {
		s.quicEndpoints = old.quicEndpoints
	} else {
		s.quicEndpoints = &quicEndpoints{list}
	}
	for i, f := range s.frontends {
		if f.quicEndpoints != s.quicEndpoints {
			next := *f // it may be published
			next.quicEndpoints = s.quicEndpoints
			s.frontends[i] = &next
		}
	}
	return nil
}

// listQUICEndpoints are the Service's UDP endpoints in the order of their numbers.
func (b *builder) listQUICEndpoints(spec *Service, s *service) ([]EndpointEntry, error) {
	var list []EndpointEntry
	for _, p := range s.pools {
		if p.proto == conntrack.ProtoUDP {
			list = append(list, p.endpoints...)
		}
	}
	for i := range spec.Listed {
		l := &spec.Listed[i]
		if l.Proto != conntrack.ProtoUDP {
			continue
		}
		ap := netip.AddrPortFrom(l.AddrPort.Addr().Unmap(), l.AddrPort.Port())
		for owner := range s.listingPorts(l) {
			entry, err := b.entries([]Endpoint{{AddrPort: ap, Weight: 1, Local: l.Local}}, owner, conntrack.ProtoUDP)
			if err != nil {
				return nil, err
			}
			list = append(list, entry...)
		}
	}
	// Of duplicates the first stays.
	slices.SortStableFunc(list, func(a, b EndpointEntry) int { return cmp.Compare(a.ID, b.ID) })
	return slices.CompactFunc(list, func(a, b EndpointEntry) bool { return a.ID == b.ID }), nil
}
