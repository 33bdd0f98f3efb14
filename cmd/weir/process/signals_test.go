package process

import (
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/weirlb/weir/cmd/weir/config"
)

// idle is a node that does not serve.
type idle struct{ cfg *config.Configuration }

func (n idle) Configuration() config.Configuration { return *n.cfg }
func (idle) Serving() bool                         { return false }
func (idle) PacketPath() PacketPath                { return nil }
func (idle) KeepsRoutes() bool                     { return false }
func (idle) Withdraw() time.Duration               { return 0 }
func (idle) ForgetDrains()                         {}

// Before the source has synced there is nothing to drain. A restart is a restart then too:
// the connections of the process before may wait for the next.
func TestSignalsBeforeTrafficIsTaken(t *testing.T) {
	for _, tt := range []struct {
		onStop string
		signal os.Signal
		leaves bool
	}{
		{config.StopDetach, syscall.SIGUSR2, true},
		{config.StopDetach, syscall.SIGTERM, false},
		{config.StopDetach, os.Interrupt, false},
		{config.StopLeave, syscall.SIGTERM, true},
		{config.StopLeave, os.Interrupt, false},
	} {
		stopped := false
		e := NewEnding(idle{&config.Configuration{OnStop: tt.onStop}}, func() { stopped = true }, nil, nil, nil)
		signals := make(chan os.Signal, 1)
		signals <- tt.signal
		e.Follow(t.Context(), signals)
		if !stopped || e.leaving.Load() != tt.leaves {
			t.Errorf("onStop: %s, %v: ended %v, for a restart %v, want %v",
				tt.onStop, tt.signal, stopped, e.leaving.Load(), tt.leaves)
		}
	}
}
