package daemon

import (
	"testing"

	"github.com/weirlb/weir/cmd/weir/healthz"
)

// A probe gets its answer also while an update holds the lock.
func TestHealthDoesNotWaitForAnUpdate(t *testing.T) {
	d := &Daemon{}
	d.lastHealth.Store(&healthz.Health{Healthy: true, Synced: true})
	d.mu.Lock()
	defer d.mu.Unlock()
	if h := d.healthNow(); !h.Synced {
		t.Errorf("%+v", h)
	}
}
