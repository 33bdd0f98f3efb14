package healthz

import (
	"testing"
	"time"

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
		var p Pending
		h := Of(c.path, &p, time.Now())
		if h.Healthy != c.healthy || h.Absent != c.absent || PathFault(c.path) != c.withdraws {
			t.Errorf("%s: %+v, withdraws %q", c.name, h, PathFault(c.path))
		}
	}
}
