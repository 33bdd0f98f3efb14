// Package daemon is `weir run`: it wires discovery, topology and the packet
// path together and carries them until it is told to stop.
package daemon

import (
	"context"
	"errors"
	"log/slog"

	"github.com/weirlb/weir/cmd/weir/config"
)

// Run serves until ctx ends, and leaves nothing behind then.
func Run(ctx context.Context, cfg *config.Configuration, log *slog.Logger) error {
	return errors.New("the packet path is not wired yet")
}

// Cleanup removes what a Weir that was killed left on the machine: pinned
// programs, the host port, routes, rules, changed sysctls.
func Cleanup(ctx context.Context, cfg *config.Configuration, log *slog.Logger) error {
	return errors.New("the packet path is not wired yet")
}
