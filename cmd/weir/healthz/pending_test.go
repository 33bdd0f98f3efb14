package healthz

import (
	"testing"
	"time"
)

func TestAnUpdateThatIsPendingTooLongIsSaid(t *testing.T) {
	var o Pending
	now := time.Unix(1000, 0)
	if r := o.Reason(now); r != "" {
		t.Errorf("nothing is pending: %q", r)
	}
	o.Begin(now)
	if r := o.Reason(now.Add(updateTimeout)); r != "" {
		t.Errorf("in time: %q", r)
	}
	if r := o.Reason(now.Add(updateTimeout + time.Second)); r != "an update has been pending for 1m1s" {
		t.Errorf("overdue: %q", r)
	}
	o.End()
	if r := o.Reason(now.Add(time.Hour)); r != "" {
		t.Errorf("published: %q", r)
	}
}
