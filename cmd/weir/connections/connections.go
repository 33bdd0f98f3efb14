// Package connections answers questions about the connections of a flow table: it lists, counts
// and removes those that match a filter. An answer takes memory for a part of the table, however
// large the table is.
package connections

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"

	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/cmd/weir/translate"
	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/conntrack/flowstate"
	"github.com/weirlb/weir/lb/header"
)

// Source has the flow table of a running Weir.
type Source struct {
	Table *conntrack.Table
	// Names returns the names of the Services by their number in the table.
	Names func() []string
	// Known returns an error for a Service that does not exist.
	Known func(service string) error
	Log   *slog.Logger
}

// Connections implements api.Source. A part of the table is in memory at a time.
func (s *Source) Connections(ctx context.Context, q api.ConnectionQuery) (api.Stream, error) {
	w, err := s.newWalk(q.Match)
	if err != nil {
		return nil, err
	}
	return func(o *api.ObjectWriter) error {
		o.Field("total", uint64(w.table.Flows()))
		o.List("connections")
		n, page := 0, make([]api.Flow, 0, min(walkPart, max(q.Limit, 64)))
		write := func() error {
			for i := range page {
				if err := o.Element(&page[i]); err != nil {
					return err
				}
			}
			page = page[:0]
			return nil
		}
		next, err := w.each(ctx, q.After, func(r conntrack.Ref, c *conntrack.Conn) bool {
			page = append(page, w.flow(r, c))
			n++
			return n != q.Limit
		}, write)
		if err != nil {
			return err
		}
		o.End()
		if next != 0 {
			return o.Field("next", next)
		}
		return o.Err()
	}, nil
}

// KillConnections implements api.Source.
func (s *Source) KillConnections(ctx context.Context, match *api.FlowMatcher) (*api.Killed, error) {
	w, err := s.newWalk(match)
	if err != nil {
		return nil, err
	}
	out := &api.Killed{}
	_, err = w.each(ctx, 0, func(r conntrack.Ref, c *conntrack.Conn) bool {
		if End(w.table, r, c) {
			out.Killed++
		}
		return true
	}, nil)
	s.Log.Info("connections killed by the operator", "connections", out.Killed, "filter", match.Filter.String(), "complete", err == nil)
	if err != nil {
		return nil, fmt.Errorf("%d connections were removed, then: %w", out.Killed, err)
	}
	return out, nil
}

// End ends a connection, and reports whether it was there. The packet loop tells both sides of an
// open TCP connection or SCTP association at the next packet of either, and forgets it some seconds
// later. Of others it forgets at once.
func End(t *conntrack.Table, r conntrack.Ref, c *conntrack.Conn) bool {
	switch c.State() {
	case flowstate.Established, flowstate.FinWait, flowstate.CloseWait, flowstate.LastAck,
		flowstate.SCTPEstablished, flowstate.SCTPShutdown:
		t.Abort(r, t.Tick())
		return c.Aborted()
	}
	return t.Delete(r)
}

// EndAll ends all connections, and returns how many there were.
func EndAll(t *conntrack.Table) (n int) {
	t.Range(func(r conntrack.Ref) bool {
		if End(t, r, t.Conn(r)) {
			n++
		}
		return true
	})
	return n
}

// CountConnections implements api.Source.
func (s *Source) CountConnections(ctx context.Context, match *api.FlowMatcher, by string, limit int) (*api.ConnectionCount, error) {
	w, err := s.newWalk(match)
	if err != nil {
		return nil, err
	}
	g := newGroups(maxGroups)
	out := &api.ConnectionCount{}
	key := w.groupBy(by)
	_, err = w.each(ctx, 0, func(r conntrack.Ref, c *conntrack.Conn) bool {
		out.Matched++
		g.add(key(r, c))
		return true
	}, nil)
	if err != nil {
		return nil, err
	}
	out.Groups, out.Error = g.largest(limit), g.lost
	out.Others = out.Matched
	for _, x := range out.Groups {
		out.Others -= x.Count
	}
	return out, nil
}

// groupBy returns the function that gives a connection's group.
func (w *walk) groupBy(by string) func(conntrack.Ref, *conntrack.Conn) group {
	t := w.table
	prefix := func(a netip.Addr) group {
		bits := 64
		if a.Is4() {
			bits = 24
		}
		p, _ := a.Prefix(bits)
		return group{prefix: p}
	}
	switch by {
	case "service":
		return func(_ conntrack.Ref, c *conntrack.Conn) group { return group{text: w.serviceOf(c)} }
	case "frontend":
		return func(r conntrack.Ref, _ *conntrack.Conn) group {
			k := &t.Entry(r).Key
			return group{text: header.ProtocolName(k.Proto()), place: k.Dst()}
		}
	case "endpoint":
		return func(r conntrack.Ref, _ *conntrack.Conn) group {
			return group{text: header.ProtocolName(t.Entry(r).Key.Proto()), place: t.NewDst(r)}
		}
	case "client":
		return func(r conntrack.Ref, _ *conntrack.Conn) group {
			a := t.Entry(r).Key.Src().Addr()
			return group{prefix: netip.PrefixFrom(a, a.BitLen())}
		}
	case "client-prefix":
		return func(r conntrack.Ref, _ *conntrack.Conn) group { return prefix(t.Entry(r).Key.Src().Addr()) }
	case "protocol":
		return func(r conntrack.Ref, _ *conntrack.Conn) group {
			return group{text: header.ProtocolName(t.Entry(r).Key.Proto())}
		}
	case "mode":
		return func(r conntrack.Ref, _ *conntrack.Conn) group {
			return group{text: translate.ModeName(t.Entry(r).Mode)}
		}
	}
	return func(_ conntrack.Ref, c *conntrack.Conn) group { return group{text: c.State().String()} }
}

// group is what connections of a group have in common.
type group struct {
	text   string
	place  netip.AddrPort
	prefix netip.Prefix
}

func (g group) String() string {
	switch {
	case g.prefix.IsValid() && g.prefix.IsSingleIP():
		return g.prefix.Addr().String()
	case g.prefix.IsValid():
		return g.prefix.String()
	case g.place.IsValid():
		return g.text + " " + g.place.String()
	case g.text == "":
		return "none"
	}
	return g.text
}

// maxGroups is how many groups are kept apart.
const maxGroups = 1 << 16

// groups counts by group in bounded memory (Misra and Gries, Finding repeated elements,
// 1982): a new group that finds no room takes 1 from every group, and empty groups go. A
// count is too low by at most lost.
type groups struct {
	most  int
	count map[group]uint64
	lost  uint64
}

func newGroups(most int) *groups { return &groups{most: most, count: map[group]uint64{}} }

func (g *groups) add(k group) {
	if _, ok := g.count[k]; ok || len(g.count) < g.most {
		g.count[k]++
		return
	}
	g.lost++
	for k, n := range g.count {
		if n == 1 {
			delete(g.count, k)
		} else {
			g.count[k] = n - 1
		}
	}
}

// largest are the largest groups.
func (g *groups) largest(limit int) []api.ConnectionGroup {
	out := make([]api.ConnectionGroup, 0, len(g.count))
	for k, n := range g.count {
		out = append(out, api.ConnectionGroup{Key: k.String(), Count: n})
	}
	slices.SortFunc(out, func(a, b api.ConnectionGroup) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Key, b.Key))
	})
	return slices.Clone(out[:min(limit, len(out))])
}
