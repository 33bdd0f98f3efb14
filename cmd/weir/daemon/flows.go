package daemon

import (
	"context"
	"net/netip"
	"sync/atomic"

	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/cmd/weir/translate"
	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/header"
)

// Flows implements api.Source.
func (d *Daemon) Flows(ctx context.Context, limit int, match *api.FlowMatcher) (*api.FlowList, error) {
	t := d.lb.FlowTable()
	out := &api.FlowList{Total: uint64(t.Flows()), Flows: []api.Flow{}}
	now := t.Tick()
	t.Range(func(r conntrack.Ref) bool {
		if ctx.Err() != nil {
			return false
		}
		e := t.Entry(r)
		if !match.Tuple(e.Key.Src(), e.Key.Dst(), t.NewDst(r)) {
			return true
		}
		c := t.Conn(r)
		service, state := d.lb.Tables().ServiceName(atomic.LoadUint32(&c.ServiceID)), c.State().String()
		if !match.Rest(service, state) {
			return true
		}
		if len(out.Flows) == limit {
			out.Truncated = true
			return false
		}
		var snat netip.AddrPort
		if e.Mode == conntrack.ModeNAT {
			snat = t.NewSrc(r)
		}
		out.Flows = append(out.Flows, api.Flow{
			Protocol: header.ProtocolName(e.Key.Proto()),
			Client:   e.Key.Src(), Frontend: e.Key.Dst(), SNAT: snat, Endpoint: t.NewDst(r),
			Service: service,
			Mode:    translate.ModeName(e.Mode), State: state,
			IdleSeconds: float64(c.Idle(now)) / conntrack.TicksPerSecond,
		})
		return true
	})
	return out, ctx.Err()
}

// Verify implements api.Source.
func (d *Daemon) Verify(ctx context.Context) (*api.Verification, error) {
	v, err := d.lb.FlowTable().Verify(ctx)
	if err != nil {
		return nil, err
	}
	out := &api.Verification{Connections: v.Connections, Slots: v.Slots, Faults: v.Faults, FaultsLeftOut: v.More}
	if out.Faults == nil {
		out.Faults = []string{}
	}
	return out, nil
}
