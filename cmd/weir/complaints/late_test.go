package complaints

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirlb/weir/cmd/weir/healthz"
	"github.com/weirlb/weir/cmd/weir/problem"
	"github.com/weirlb/weir/lb/ports/absence"
)

// well is a packet path without a fault.
type well struct{}

func (well) StuckWorker() int         { return -1 }
func (well) Absent() *absence.Absence { return nil }

// A late update is a problem, and no reason to restart Weir or to withdraw addresses: all nodes have
// the same update. If there is no progress at all for a long time, a restart helps, and addresses
// stay announced until the end.
func TestALateUpdateFailsNoProbe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		problems := problem.NewRegistry(slog.New(slog.DiscardHandler))
		var p healthz.Pending
		go func() { _ = FollowLate(ctx, &p, problems) }()
		done := p.Working()
		time.Sleep(15 * time.Minute)
		synctest.Wait()
		if h := healthz.Of(well{}, &p, time.Now()); !h.Healthy || h.Pending != 15*time.Minute {
			t.Errorf("an update that is late: %+v", h)
		}
		if n := problems.Counts()[problem.LateUpdate]; n != 1 {
			t.Errorf("%d problems", n)
		}
		time.Sleep(15*time.Minute + time.Second)
		if h := healthz.Of(well{}, &p, time.Now()); h.Healthy || !strings.Contains(h.Reason, "no progress") {
			t.Errorf("an update without any progress: %+v", h)
		}
		if reason := healthz.PathFault(well{}); reason != "" {
			t.Errorf("addresses are withdrawn: %s", reason)
		}
		done()
		time.Sleep(time.Minute)
		synctest.Wait()
		if h := healthz.Of(well{}, &p, time.Now()); !h.Healthy || h.Pending != 0 || problems.Counts()[problem.LateUpdate] != 0 {
			t.Errorf("at the end: %+v, %v", h, problems.Counts())
		}
	})
}
