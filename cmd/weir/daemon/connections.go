package daemon

import (
	"context"

	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/cmd/weir/connections"
)

// connections has the answers about the flow table.
func (d *Daemon) connections() *connections.Source {
	return &connections.Source{
		Table: d.lb.FlowTable(), Names: d.lb.Tables().ServiceNames, Log: d.log,
		Known: func(service string) error {
			_, err := d.servicesNamed(service)
			return err
		},
	}
}

// Flows implements api.Source.
func (d *Daemon) Flows(ctx context.Context, limit int, match *api.FlowMatcher) (*api.FlowList, error) {
	return d.connections().Flows(ctx, limit, match)
}

// Connections implements api.Source.
func (d *Daemon) Connections(ctx context.Context, q api.ConnectionQuery) (api.Stream, error) {
	return d.connections().Connections(ctx, q)
}

// CountConnections implements api.Source.
func (d *Daemon) CountConnections(ctx context.Context, match *api.FlowMatcher, by string, limit int) (*api.ConnectionCount, error) {
	return d.connections().CountConnections(ctx, match, by, limit)
}

// KillConnections implements api.Source.
func (d *Daemon) KillConnections(ctx context.Context, match *api.FlowMatcher) (*api.Killed, error) {
	return d.connections().KillConnections(ctx, match)
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
