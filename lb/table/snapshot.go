package table

import (
	"iter"
	"net/netip"

	"github.com/weirlb/weir/conntrack"
)

// Snapshot has the frontends of a publication, immutable.
type Snapshot struct {
	number    uint64
	root      *node
	ranges    *ranges // never nil
	services  int
	frontends int
}

// FrontendEntry is a frontend as workers see it, immutable.
type FrontendEntry struct {
	Key           Key
	Pool          *PoolEntry     // never nil
	Policy        *Policy        // of the Service; nil: none
	servicePort   uint64         // the frontend's Service port, see servicePort
	quicEndpoints *quicEndpoints // of the Service; nil unless that follows QUIC connection IDs
	ServiceID     uint32         // number of the Service, from 1; see [Table.ServiceName]
	Proto         uint8
	Kind          Kind
	Mode          conntrack.Mode // mode of new flows
	ClusterScope  bool
	LastPort      uint16 // of a range of ports that begins with that of AddrPort; 0: a single port
	endpointPort  uint16 // with which the Service port lists the endpoints of a range
	AddrPort      netip.AddrPort
	ServiceName   string
}

// ServicePort identifies the frontend's Service port: the Service's name, port and
// protocol.
func (f *FrontendEntry) ServicePort() uint64 { return f.servicePort }

// DenyLists are the deny lists of the Service, a bit for each.
func (f *FrontendEntry) DenyLists() uint16 {
	if f.Policy == nil {
		return 0
	}
	return f.Policy.DenyLists
}

// AffinityKey is the key of a client for session affinity: the address, and the Service
// port, whose frontends all send a client to the same endpoint. w is the
// tuple as for [Hash].
func (f *FrontendEntry) AffinityKey(w *[5]uint64) [3]uint64 {
	w0, w1 := clientWords(w)
	return [3]uint64{w0, w1, f.servicePort}
}

// Number counts publications: that of New is 0, each change adds 1.
func (s *Snapshot) Number() uint64 { return s.number }

// Services is the number of Services, including those without a frontend.
func (s *Snapshot) Services() int { return s.services }

// Frontends is the number of frontends.
func (s *Snapshot) Frontends() int { return s.frontends }

// Lookup is the frontend with key k, or nil: that of a single port, or else a range that has the
// port. It does not allocate.
func (s *Snapshot) Lookup(k *Key) *FrontendEntry {
	if f := s.root.find(k, k.hash()); f != nil || len(s.ranges.spans) == 0 {
		return f
	}
	return s.ranges.find(k)
}

// Exact is the frontend with key k itself, or nil.
func (s *Snapshot) Exact(k *Key) *FrontendEntry { return s.root.find(k, k.hash()) }

// All gives every frontend, in no order that means anything.
func (s *Snapshot) All() iter.Seq[*FrontendEntry] {
	return func(yield func(*FrontendEntry) bool) { s.root.walk(yield) }
}
