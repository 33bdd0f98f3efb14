package endpointhealth

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"

	"github.com/weirlb/weir/cmd/weir/config"
	"github.com/weirlb/weir/cmd/weir/translate"
	"github.com/weirlb/weir/discovery/prober"
	"github.com/weirlb/weir/lb/probepath"
)

// Path is that of probes in the modes without translation. beside is of a command beside a Weir that may
// run.
func Path(cfg *config.Configuration, beside bool, log *slog.Logger) *probepath.Path {
	return probepath.New(probepath.Config{
		Mark: uint32(cfg.HostVeth.ProbeMark), Table: cfg.HostVeth.ProbeTable,
		GUEZeroChecksum: cfg.Forwarding.GUEZeroChecksum, Beside: beside, Log: log,
	})
}

// Dialer connects to targets with Via by a path, and straight to others.
func Dialer(path *probepath.Path) prober.Dialer {
	return func(ctx context.Context, network string, t *prober.Target) (net.Conn, error) {
		if t.Via == (prober.Via{}) {
			return prober.Straight(ctx, network, t)
		}
		c, err := path.Dial(ctx, network, probepath.Target{Mode: translate.Mode(t.Via.Mode), Endpoint: t.At.Addr(), Frontend: t.To()})
		if errors.Is(err, probepath.ErrNode) {
			err = fmt.Errorf("%w: %w", prober.ErrNode, err)
		}
		return c, err
	}
}
