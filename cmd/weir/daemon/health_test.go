package daemon

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

// pathState is a state of the packet path.
type pathState struct {
	stuck  int
	absent *absence.Absence
}

func (p pathState) StuckWorker() int         { return p.stuck }
func (p pathState) Absent() *absence.Absence { return p.absent }

var works = pathState{stuck: -1}

// A late update is a problem, and no reason to restart Weir or to withdraw addresses: all nodes have
// the same update. If there is no progress at all for a long time, a restart helps, and addresses
// stay announced until the end.
func TestALateUpdateFailsNoProbe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		problems := problem.NewRegistry(slog.New(slog.DiscardHandler))
		var p healthz.Pending
		go func() { _ = followLate(ctx, &p, problems) }()
		done := working(&p)()
		time.Sleep(15 * time.Minute)
		synctest.Wait()
		if h := healthOf(works, &p, time.Now()); !h.Healthy || h.Pending != 15*time.Minute {
			t.Errorf("an update that is late: %+v", h)
		}
		if n := problems.Counts()[problem.LateUpdate]; n != 1 {
			t.Errorf("%d problems", n)
		}
		time.Sleep(15*time.Minute + time.Second)
		if h := healthOf(works, &p, time.Now()); h.Healthy || !strings.Contains(h.Reason, "no progress") {
			t.Errorf("an update without any progress: %+v", h)
		}
		if reason := pathFault(works); reason != "" {
			t.Errorf("addresses are withdrawn: %s", reason)
		}
		done()
		time.Sleep(time.Minute)
		synctest.Wait()
		if h := healthOf(works, &p, time.Now()); !h.Healthy || h.Pending != 0 || problems.Counts()[problem.LateUpdate] != 0 {
			t.Errorf("at the end: %+v, %v", h, problems.Counts())
		}
	})
}

// The packet path alone withdraws addresses, and fails /livez where a restart helps.
func TestHealthFollowsThePacketPath(t *testing.T) {
	gone, final := &absence.Absence{Reason: "interface eth0 is gone"}, &absence.Absence{Reason: "interface weir0 is gone", Final: true}
	for _, c := range []struct {
		name      string
		path      pathState
		healthy   bool
		absent    string
		withdraws string
	}{
		{"all is well", works, true, "", ""},
		{"a worker hangs", pathState{stuck: 1}, false, "", "worker 1 is stuck"},
		{"an interface is gone", pathState{-1, gone}, true, gone.Reason, gone.Reason},
		{"the host veth is gone", pathState{-1, final}, false, final.Reason, final.Reason},
	} {
		var p healthz.Pending
		h := healthOf(c.path, &p, time.Now())
		if h.Healthy != c.healthy || h.Absent != c.absent || pathFault(c.path) != c.withdraws {
			t.Errorf("%s: %+v, withdraws %q", c.name, h, pathFault(c.path))
		}
	}
}
