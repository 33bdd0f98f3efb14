package connections

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/cmd/weir/translate"
	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/conntrack/flowstate"
	"github.com/weirlb/weir/lb/header"
)

// walkPart is how many connections a walk looks at before it lets go of the flow table.
const walkPart = 4096

// walk looks at the connections of the flow table that match, in parts.
type walk struct {
	table *conntrack.Table
	match *api.FlowMatcher
	// names are the Services by number, as of the beginning; service is the number of that
	// of the filter.
	names   []string
	service uint32
	none    bool      // the Service of the filter has no connections
	states  [256]bool // that match, by flowstate.State
}

// newWalk fails if the filter names a Service that does not exist: it might be misspelt.
func (s *Source) newWalk(match *api.FlowMatcher) (*walk, error) {
	w := &walk{table: s.Table, match: match, names: s.Names()}
	if match.Service != "" {
		n := slices.Index(w.names, match.Service)
		if w.none = n < 0; w.none {
			if err := s.Known(match.Service); err != nil {
				return nil, err
			}
		}
		w.service = uint32(n)
	}
	for n := range w.states {
		w.states[n] = match.State(flowstate.State(n).String())
	}
	if !slices.Contains(w.states[:], true) {
		return nil, fmt.Errorf("%w: state: no state has %q in its name", api.ErrInvalid, match.Filter.State)
	}
	return w, nil
}

// each calls f for connections that match, from number from on, until f returns false, and
// between calls after, if it is not nil, with the flow table let go of. It returns where to go
// on, 0 at the end. It rests for as long as it works: the workers need the caches, too.
func (w *walk) each(ctx context.Context, from uint32, f func(conntrack.Ref, *conntrack.Conn) bool, after func() error) (next uint32, err error) {
	for {
		began, more, now := time.Now(), true, w.table.Tick()
		next = w.table.RangePart(from, walkPart, func(r conntrack.Ref) bool {
			if c := w.table.Conn(r); w.matches(r, c, now) {
				more = f(r, c)
			}
			return more
		})
		if after != nil {
			if err := after(); err != nil {
				return 0, err
			}
		}
		if next == 0 || !more {
			return next, ctx.Err()
		}
		from = next
		select {
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-time.After(time.Since(began)):
		}
	}
}

func (w *walk) matches(r conntrack.Ref, c *conntrack.Conn, now uint32) bool {
	m := w.match
	switch {
	case !w.states[c.State()], c.Aborted():
		return false
	case m.Service != "" && (w.none || atomic.LoadUint32(&c.ServiceID) != w.service):
		return false
	case !m.Times(ticks(now-c.Created()), ticks(c.Idle(now))):
		return false
	}
	e := w.table.Entry(r)
	if p := m.Filter.Protocol; p != "" && header.ProtocolName(e.Key.Proto()) != p {
		return false
	}
	return m.Tuple(e.Key.Src(), e.Key.Dst(), w.table.NewDst(r))
}

// ticks is a number of ticks as a time; a negative one, of another worker's clock, is 0.
func ticks(n uint32) time.Duration {
	return time.Duration(max(0, int32(n))) * time.Second / conntrack.TicksPerSecond
}

// flow is a connection for people.
func (w *walk) flow(r conntrack.Ref, c *conntrack.Conn) api.Flow {
	t, e, now := w.table, w.table.Entry(r), w.table.Tick()
	var snat netip.AddrPort
	if e.Mode == conntrack.ModeNAT {
		snat = t.NewSrc(r)
	}
	return api.Flow{
		Protocol: header.ProtocolName(e.Key.Proto()),
		Client:   e.Key.Src(), Frontend: e.Key.Dst(), SNAT: snat, Endpoint: t.NewDst(r),
		Service: w.serviceOf(c), Mode: translate.ModeName(e.Mode), State: c.State().String(),
		AgeSeconds: ticks(now - c.Created()).Seconds(), IdleSeconds: ticks(c.Idle(now)).Seconds(),
	}
}

func (w *walk) serviceOf(c *conntrack.Conn) string {
	if n := atomic.LoadUint32(&c.ServiceID); uint64(n) < uint64(len(w.names)) {
		return w.names[n]
	}
	return ""
}

// Flows implements api.Source.
func (s *Source) Flows(ctx context.Context, limit int, match *api.FlowMatcher) (*api.FlowList, error) {
	w, err := s.newWalk(match)
	if err != nil {
		return nil, err
	}
	out := &api.FlowList{Total: uint64(w.table.Flows()), Flows: []api.Flow{}}
	_, err = w.each(ctx, 0, func(r conntrack.Ref, c *conntrack.Conn) bool {
		if len(out.Flows) == limit {
			out.Truncated = true
			return false
		}
		out.Flows = append(out.Flows, w.flow(r, c))
		return true
	}, nil)
	return out, err
}
