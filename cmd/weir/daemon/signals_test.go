package daemon

import (
	"os"
	"syscall"
	"testing"

	"github.com/weirlb/weir/cmd/weir/config"
)

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
		d := &Daemon{
			cfg:       &config.Configuration{OnStop: tt.onStop},
			stopAsked: make(chan struct{}, 1),
			stop:      func(error) { stopped = true },
		}
		signals := make(chan os.Signal, 1)
		signals <- tt.signal
		d.followLeave(t.Context(), signals)
		if !stopped || d.leaving.Load() != tt.leaves {
			t.Errorf("onStop: %s, %v: ended %v, for a restart %v, want %v",
				tt.onStop, tt.signal, stopped, d.leaving.Load(), tt.leaves)
		}
	}
}
