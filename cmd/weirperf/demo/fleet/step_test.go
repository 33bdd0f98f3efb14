package fleet

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/weirlb/weir/perf/netlab/workload"
)

// record is that of new connections, of which some failed.
func record(good, failed int) *workload.Record {
	r := &workload.Record{}
	for i := range good + failed {
		var err error
		if i >= good {
			err = errors.New("connection refused")
		}
		r.Add("server", time.Millisecond, err)
	}
	return r
}

// A loss in mode ipip, and a step without traffic, are faults; a loss in mode nat is none.
func TestFaultsAreLossesOfAModeThatKeepsConnections(t *testing.T) {
	good := outcome{established: 40, opened: record(9, 0)}
	lossy := outcome{established: 40, lost: 3, err: errors.New("connection reset"), opened: record(9, 2)}
	refused := outcome{established: 40, opened: record(9, 2)}
	for name, c := range map[string]struct {
		ipip, nat outcome
		want      string // "" for no fault
	}{
		"nothing lost":    {good, good, ""},
		"lost in nat":     {good, lossy, ""},
		"lost in ipip":    {lossy, good, "node1 is drained: 3 established connections were lost in mode ipip: connection reset"},
		"refused in ipip": {refused, good, "node1 is drained: new connections failed in mode ipip: "},
		"no traffic":      {good, outcome{established: 40, opened: record(0, 0)}, "node1 is drained: no traffic in mode nat"},
		"none is open":    {outcome{opened: record(9, 0)}, good, "node1 is drained: no traffic in mode ipip"},
	} {
		t.Run(name, func(t *testing.T) {
			r := result{step: steps([]string{"drain"})[0], modes: []outcome{c.ipip, c.nat}}
			got := r.faults()
			if c.want == "" && len(got) != 0 || c.want != "" && (len(got) != 1 || !strings.HasPrefix(got[0], c.want)) {
				t.Errorf("faults %q, want %q", got, c.want)
			}
		})
	}
}

// Sessions that end while no node leaves are a fault, whatever becomes of connections.
func TestFaultsAreSessionsThatEndWithoutADeath(t *testing.T) {
	good := outcome{established: 40, opened: record(9, 0)}
	r := result{step: steps([]string{"busy"})[0], modes: []outcome{good, good}}
	if got := r.faults(); len(got) != 0 {
		t.Errorf("faults %q of a step without any", got)
	}
	r.ended = 2
	const want = "the CPUs are busy for a minute: 2 sessions ended"
	if got := r.faults(); len(got) != 1 || !strings.HasPrefix(got[0], want) {
		t.Errorf("faults %q, want %q", got, want)
	}
	r.ended, r.modes[1] = 0, outcome{established: 40, lost: 3, err: errors.New("connection reset"), opened: record(9, 0)}
	if got := r.faults(); len(got) != 1 || !strings.Contains(got[0], "lost in mode nat") {
		t.Errorf("faults %q of a loss in mode nat although no node left", got)
	}
}

// A process that was started again counts its sessions from 0.
func TestEndsOfSessions(t *testing.T) {
	was := ends{{pid: 1, number: 2}, {pid: 2}, {pid: 3, number: 5}}
	for want, now := range []ends{
		was,
		{{pid: 1, number: 2}, {pid: 2, number: 1}, {pid: 3, number: 5}},
		{{pid: 1, number: 3}, {pid: 2}, {pid: 9}},
	} {
		if got := was.until(now); got != want {
			t.Errorf("%d sessions have ended, want %d", got, want)
		}
	}
}
