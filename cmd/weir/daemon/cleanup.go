package daemon

import (
	"context"
	"log/slog"

	"github.com/weirlb/weir/cmd/weir/config"
	"github.com/weirlb/weir/lb"
	"github.com/weirlb/weir/lb/announce/routes"
)

// Cleanup removes the remains of a killed Weir on the machine: pinned programs, the host veth with
// its routes and rules, announced routes, and changed settings. It fails while a Weir runs.
func Cleanup(_ context.Context, cfg *config.Configuration, log *slog.Logger) error {
	return lb.Cleanup(packetPath(cfg, log),
		func() error { return routes.Cleanup(kernelRoutes(&cfg.Announce)) })
}
