package daemon

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"

	"github.com/weirlb/weir/cmd/weir/announcer"
	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/cmd/weir/config"
	"github.com/weirlb/weir/cmd/weir/drains"
	"github.com/weirlb/weir/lb"
	"github.com/weirlb/weir/lb/announce/routes"
	"github.com/weirlb/weir/lb/probepath"
)

// Cleanup removes the remains of a killed Weir on the machine: pinned programs, the host veth with
// its routes and rules, announced routes, drains, the admin socket, and changed settings. It fails while a Weir runs.
func Cleanup(_ context.Context, cfg *config.Configuration, log *slog.Logger) error {
	return lb.Cleanup(packetPath(cfg, log),
		probepath.Cleanup,
		func() error { return routes.Cleanup(announcer.KernelRoutes(&cfg.Announce)) },
		func() error { return api.RemoveStale(cfg.Admin.Socket) },
		func() error {
			if err := os.Remove(drains.FileOf(cfg)); !errors.Is(err, fs.ErrNotExist) {
				return err
			}
			return nil
		})
}
