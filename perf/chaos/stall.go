package chaos

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/weirlb/weir/perf/netlab/patience"
)

// A connection that waits for longer than this is looked at.
const waitNoted = 2 * time.Second

// mostWait is how long a connection may wait while no fault concerns it: until the next
// retransmission, which a busy machine delays. 0 says that the kernel does not limit the time
// between two.
func mostWait() time.Duration {
	if !backoffIsLimited() {
		return 0
	}
	return rtoMax + patience.For(time.Second)
}

// stalls looks at connections that wait, and at the workers meanwhile.
type stalls struct {
	node    *node
	traffic *traffic
	report  *Report
	begun   time.Time
	last    []worker
	lastPID int
}

// worker is the part of a worker's counters that tells whether it works.
type worker struct {
	ID         int               `json:"id"`
	RxPackets  uint64            `json:"rxPackets"`
	TxPackets  uint64            `json:"txPackets"`
	Batches    uint64            `json:"batches"`
	Handoff    uint64            `json:"handoff"`
	TxErrors   uint64            `json:"txErrors"`
	FreeFrames uint64            `json:"freeFrames"`
	Drops      map[string]uint64 `json:"drops"`
}

func (s *stalls) run(ctx context.Context) {
	for pause(ctx, time.Second) {
		waiting := s.waiting(time.Now())
		if len(waiting) == 0 {
			s.last = nil
			continue
		}
		s.report.waited(len(waiting))
		s.node.cfg.Log("%6.1f s: %s; %s", time.Since(s.begun).Seconds(), describe(waiting, len(s.traffic.talks)), s.workers(ctx))
	}
}

// waiting are the connections whose exchange takes long, the longest first.
func (s *stalls) waiting(now time.Time) []*talk {
	var out []*talk
	for _, k := range s.traffic.talks {
		if begun := k.begun.Load(); begun != 0 && now.Sub(time.Unix(0, begun)) > waitNoted && !k.failed.Load() {
			out = append(out, k)
		}
	}
	slices.SortFunc(out, func(a, b *talk) int { return int(a.begun.Load() - b.begun.Load()) })
	return out
}

func describe(waiting []*talk, of int) string {
	to := map[string]int{}
	for _, k := range waiting {
		name, _, _ := strings.Cut(k.service.name, "-")
		to[name+" "+family(k.six)]++
	}
	var names []string
	for _, name := range slices.Sorted(maps.Keys(to)) {
		names = append(names, fmt.Sprintf("%s %d", name, to[name]))
	}
	k := waiting[0]
	return fmt.Sprintf("%d of %d connections wait (%s), the longest for %v (%s)", len(waiting), of, strings.Join(names, ", "),
		time.Since(time.Unix(0, k.begun.Load())).Round(time.Millisecond), stateOf(k.conn))
}

// workers describes what every worker has done since the last look.
func (s *stalls) workers(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	now, err := s.node.admin.status(ctx)
	if err != nil {
		return fmt.Sprintf("no process answers: %v", err)
	}
	if now.PID != s.lastPID || len(now.Workers) != len(s.last) {
		s.last, s.lastPID = make([]worker, len(now.Workers)), now.PID
	}
	var b strings.Builder
	fmt.Fprintf(&b, "process %d", now.PID)
	for i, w := range now.Workers {
		was := &s.last[i]
		fmt.Fprintf(&b, "; worker %d: %d batches, %d received, %d sent, %d handed over, %d errors, %d free frames", w.ID, w.Batches-was.Batches,
			w.RxPackets-was.RxPackets, w.TxPackets-was.TxPackets, w.Handoff-was.Handoff, w.TxErrors-was.TxErrors, w.FreeFrames)
		for _, reason := range slices.Sorted(maps.Keys(w.Drops)) {
			if d := w.Drops[reason] - was.Drops[reason]; d > 0 {
				fmt.Fprintf(&b, ", %s %d", reason, d)
			}
		}
	}
	s.last = now.Workers
	return b.String()
}
