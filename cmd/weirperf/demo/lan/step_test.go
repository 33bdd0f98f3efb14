package lan

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weirlb/weir/perf/netlab/workload"
)

// Losses of a planned move, connections of mode l2dsr, a long outage and an address that moves by
// itself are faults; losses of a death are none, nor are established connections of mode nat.
func TestFaultsAreLossesThatMayNotBe(t *testing.T) {
	probes := func(lost int, gap time.Duration) workload.ProbeReport {
		return workload.ProbeReport{Sent: 100, Lost: lost, Gap: gap, Err: errors.New("timeout")}
	}
	quiet := probes(0, 20*time.Millisecond)
	good := outcome{datagrams: quiet, opened: quiet, established: 20}
	lossy := outcome{datagrams: probes(30, 300*time.Millisecond), opened: probes(15, 300*time.Millisecond), established: 20}
	cut := outcome{datagrams: quiet, opened: quiet, established: 20, lost: 3, err: errors.New("connection reset")}
	const drained, killed, restarted = 0, 2, 3
	for name, c := range map[string]struct {
		step       int
		moved      int
		l2dsr, nat outcome
		want       []string
	}{
		"nothing lost":                     {drained, 16, good, good, nil},
		"probes lost by a drain":           {drained, 16, good, lossy, []string{"30 of 100 probes were lost in mode nat"}},
		"connections lost by a drain":      {drained, 16, good, outcome{datagrams: quiet, opened: probes(2, 0), established: 20}, []string{"2 of 100 new connections failed in mode nat"}},
		"established in nat":               {drained, 16, good, cut, nil},
		"established in l2dsr":             {killed, 16, cut, good, []string{"3 established connections were lost in mode l2dsr: connection reset"}},
		"lost by a death":                  {killed, 16, lossy, lossy, nil},
		"not served for long":              {killed, 16, outcome{datagrams: probes(900, time.Hour), opened: quiet, established: 20}, good, []string{"no answer for 3600000 ms in mode l2dsr"}},
		"moved to a node that has started": {restarted, 2, good, good, []string{"2 addresses moved"}},
		"without traffic":                  {drained, 16, outcome{}, good, []string{"no traffic in mode l2dsr"}},
	} {
		t.Run(name, func(t *testing.T) {
			r := result{step: &steps[c.step], moved: c.moved, modes: []outcome{c.l2dsr, c.nat}}
			got := r.faults()
			if !slices.EqualFunc(got, c.want, func(g, w string) bool { return strings.HasPrefix(g, r.title()+": "+w) }) {
				t.Errorf("faults %q, want %q", got, c.want)
			}
		})
	}
}
