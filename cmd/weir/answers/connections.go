package answers

import (
	"context"

	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/cmd/weir/connections"
)

// connections has the answers about the flow table.
func (src *Source) connections() *connections.Source {
	return &connections.Source{
		Table: src.LB.FlowTable(), Names: src.LB.Tables().ServiceNames, Log: src.Log,
		Known: func(service string) error {
			_, err := src.servicesNamed(service)
			return err
		},
	}
}

// Flows implements api.Source.
func (src *Source) Flows(ctx context.Context, limit int, match *api.FlowMatcher) (*api.FlowList, error) {
	return src.connections().Flows(ctx, limit, match)
}

// Connections implements api.Source.
func (src *Source) Connections(ctx context.Context, q api.ConnectionQuery) (api.Stream, error) {
	return src.connections().Connections(ctx, q)
}

// CountConnections implements api.Source.
func (src *Source) CountConnections(ctx context.Context, match *api.FlowMatcher, by string, limit int) (*api.ConnectionCount, error) {
	return src.connections().CountConnections(ctx, match, by, limit)
}

// KillConnections implements api.Source.
func (src *Source) KillConnections(ctx context.Context, match *api.FlowMatcher) (*api.Killed, error) {
	return src.connections().KillConnections(ctx, match)
}

// Verify implements api.Source.
func (src *Source) Verify(ctx context.Context) (*api.Verification, error) {
	v, err := src.LB.FlowTable().Verify(ctx)
	if err != nil {
		return nil, err
	}
	out := &api.Verification{Connections: v.Connections, Slots: v.Slots, Faults: v.Faults, FaultsLeftOut: v.More}
	if out.Faults == nil {
		out.Faults = []string{}
	}
	return out, nil
}
