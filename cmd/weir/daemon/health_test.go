package daemon

import (
	"testing"
	"time"

	"github.com/weirlb/weir/cmd/weir/metrics"
)

func TestAnUpdateThatIsPendingTooLongIsSaid(t *testing.T) {
	var o overdue
	now := time.Unix(1000, 0)
	if r := o.reason(now); r != "" {
		t.Errorf("nothing is pending: %q", r)
	}
	o.begin(now)
	if r := o.reason(now.Add(updateTimeout)); r != "" {
		t.Errorf("in time: %q", r)
	}
	if r := o.reason(now.Add(updateTimeout + time.Second)); r != "an update has been pending for 1m1s" {
		t.Errorf("overdue: %q", r)
	}
	o.end()
	if r := o.reason(now.Add(time.Hour)); r != "" {
		t.Errorf("published: %q", r)
	}
}

// A probe gets its answer also while an update holds the lock.
func TestHealthDoesNotWaitForAnUpdate(t *testing.T) {
	d := &Daemon{}
	d.lastHealth.Store(&metrics.Health{Healthy: true, Synced: true})
	d.mu.Lock()
	defer d.mu.Unlock()
	if h := d.healthNow(); !h.Synced {
		t.Errorf("%+v", h)
	}
}
