package daemon

import (
	"log/slog"
	"testing"

	"github.com/weirlb/weir/cmd/weir/config"
)

// The level that weir log-level has set holds until the configuration has another level, whatever
// else a reload brings.
func TestAReloadLeavesTheLevelOfTheOperator(t *testing.T) {
	d := &Daemon{cfg: config.Default(), level: &slog.LevelVar{}}
	d.level.Set(slog.LevelDebug)
	next := config.Default()
	next.Drain.NotReadySeconds++
	d.takeOverConfiguration(next)
	if got := d.level.Level(); got != slog.LevelDebug || d.cfg.Drain != next.Drain {
		t.Errorf("after a change of another field: level %v, drain %+v", got, d.cfg.Drain)
	}
	next.Logging.Level = "warn"
	d.takeOverConfiguration(next)
	if got := d.level.Level(); got != slog.LevelWarn {
		t.Errorf("after a change of the level: %v", got)
	}
}
