package table

import (
	"net/netip"
	"slices"
	"sync/atomic"

	"github.com/gaissmai/bart"
)

// Removal is the action for TCP and SCTP flows whose endpoint has left their Service
// port. UDP flows choose anew.
type Removal uint8

// Answers to the packets of such a flow.
const (
	Keep       Removal = iota // none: they go on
	ResetFlows                // a RST to whoever sends
	DropFlows                 // silence
)

// String is the answer as the annotation has it.
func (r Removal) String() string { return nameOf(r, "keep", "reset", "drop") }

// QUICConnectionID says which bytes of a QUIC connection ID name the server;
// Length 0: none do.
type QUICConnectionID struct {
	Offset, Length uint8
	Marked         bool // the first byte's upper bits 0b111: this ID names none
}

// MSSClampAuto derives the largest TCP segment from the path.
const MSSClampAuto = 0xffff

// Policy has the options of a Service for the packet path beyond the choice of endpoints.
// It is immutable once given to a Table; nil is none.
type Policy struct {
	// SourceRanges are the clients that may begin flows with the frontends of kind
	// LoadBalancer, per address family; a family without any is open.
	SourceRanges            []netip.Prefix
	OnRemoval               Removal
	MaxConnections          uint32 // at the same time; 0: no limit
	NewConnectionsPerSecond uint32 // 0: no limit
	QUICConnectionID        QUICConnectionID
	MSSClamp                uint16 // 0: off
	DenyLists               uint16 // those of the Service, a bit for each

	sources bart.Lite
	// next is when the next new connection is due, as TakeConnection counts:
	// shared by all policies that the Service ever had.
	next           *atomic.Uint64
	limit4, limit6 bool // there are ranges of the family
}

// same reports whether two policies, nil among them, ask for the same.
func (p *Policy) same(o *Policy) bool {
	if p == nil || o == nil {
		return p == o
	}
	return p.OnRemoval == o.OnRemoval && p.MaxConnections == o.MaxConnections &&
		p.NewConnectionsPerSecond == o.NewConnectionsPerSecond && p.QUICConnectionID == o.QUICConnectionID &&
		p.MSSClamp == o.MSSClamp && p.DenyLists == o.DenyLists && slices.Equal(p.SourceRanges, o.SourceRanges)
}

// buildPolicy is the policy as workers see it: that of old, if it is the same.
func buildPolicy(p *Policy, old *service) *Policy {
	if old != nil && old.policy.same(p) {
		return old.policy
	}
	if p == nil {
		return nil
	}
	out := &Policy{
		SourceRanges: slices.Clone(p.SourceRanges), OnRemoval: p.OnRemoval,
		MaxConnections: p.MaxConnections, NewConnectionsPerSecond: p.NewConnectionsPerSecond,
		QUICConnectionID: p.QUICConnectionID, MSSClamp: p.MSSClamp, DenyLists: p.DenyLists,
	}
	if out.next = new(atomic.Uint64); old != nil && old.policy != nil {
		out.next = old.policy.next
	}
	for _, r := range out.SourceRanges {
		out.sources.Insert(r)
		out.limit4 = out.limit4 || r.Addr().Is4()
		out.limit6 = out.limit6 || r.Addr().Is6()
	}
	return out
}

// Admits reports whether a client may begin a flow with a frontend of the kind.
// As with kube-proxy, source ranges are about load balancer addresses alone.
func (p *Policy) Admits(kind Kind, client netip.Addr) bool {
	family := uint8(6)
	if client.Is4() {
		family = 4
	}
	return !p.Restricts(kind, family) || p.sources.Lookup(client)
}

// Restricts reports whether source ranges of the family, 4 or 6, apply to frontends
// of the kind.
func (p *Policy) Restricts(kind Kind, family uint8) bool {
	if p == nil || kind != LoadBalancer {
		return false
	}
	if family == 4 {
		return p.limit4
	}
	return p.limit6
}

// second is a second in the time of Policy.next: ticks with 32 more bits.
const second = ticksPerSecond << 32

// TakeConnection reports whether NewConnectionsPerSecond lets another connection begin at
// tick. As many as may begin in a second may begin at once. (This is
// the generic cell rate algorithm, ITU-T I.371: a word for all workers.)
func (p *Policy) TakeConnection(tick uint32) bool { return p.connection(tick, true) }

// MayTakeConnection is TakeConnection of a connection that does not begin.
func (p *Policy) MayTakeConnection(tick uint32) bool { return p.connection(tick, false) }

func (p *Policy) connection(tick uint32, take bool) bool {
	if p.NewConnectionsPerSecond == 0 {
		return true
	}
	step, now := uint64(second)/uint64(p.NewConnectionsPerSecond), uint64(tick)<<32
	for {
		due := p.next.Load()
		from := due
		// A time that seems due in minutes is years old, by half the clock's range.
		if ahead := int64(due - now); ahead <= 0 || ahead > 60*second {
			from = now
		}
		// A worker's clock may be behind: signed.
		if int64(from+step-now) > second {
			return false
		}
		if !take || p.next.CompareAndSwap(due, from+step) {
			return true
		}
	}
}

// Removal is the action for TCP flows of a Service whose endpoint has been removed. Any
// goroutine may call it.
func (t *Table) Removal(service uint32) Removal {
	list := t.removals.Load()
	if list == nil || uint64(service) >= uint64(len(*list)) {
		return Keep
	}
	return (*list)[service]
}

// AnyRemoval reports whether Removal could be anything but Keep.
func (t *Table) AnyRemoval() bool { return t.removals.Load() != nil }

// setRemovals follows the policies of changed Services; it copies the list only for a
// changed policy.
func (t *Table) setRemovals(changed map[string]*service) {
	var list []Removal
	for _, s := range changed {
		if s == nil {
			continue
		}
		want := Keep
		if s.policy != nil {
			want = s.policy.OnRemoval
		}
		if list == nil {
			if t.Removal(s.id) == want {
				continue
			}
			list = make([]Removal, len(t.serviceIDs.names))
			if old := t.removals.Load(); old != nil {
				copy(list, *old)
			}
		}
		list[s.id] = want
	}
	switch {
	case list == nil:
	case slices.Max(list) == Keep:
		t.removals.Store(nil)
	default:
		t.removals.Store(&list)
	}
}
