package chaos

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/weirlb/weir/perf/netlab/patience"
)

// Bounds of a process that leaks nothing, however long it runs.
const (
	mostNeighbors = 32
	// mostGrowth of the number of open files in a process's life: connections of the admin
	// socket, and of interfaces that are made anew.
	mostGrowth  = 16
	sampleEvery = time.Second
	verifyEvery = 10 * time.Second
	// warmUp is the part of a process's life that does not count for the growth of memory.
	warmUp = 15 * time.Second
	// fewest samples that a slope is drawn through: in a shorter time garbage collection moves
	// the memory by more than a leak.
	fewest = 20
)

// sample is the resources of a process at a moment.
type sample struct {
	at    time.Time
	pid   int
	bytes int64 // RssAnon
	files int
}

// watch looks at the process while it runs.
type watch struct {
	node    *node
	report  *Report
	samples []sample // of the last process
}

func (w *watch) run(ctx context.Context) {
	verified := time.Now()
	for pause(ctx, sampleEvery) {
		if !w.node.weir.ending.TryLock() {
			continue // it is being ended, stopped or started
		}
		if s, err := sampleOf(w.node.weir.daemon.Cmd.Process.Pid); err == nil {
			if len(w.samples) > 0 && w.samples[0].pid != s.pid {
				w.samples = nil
			}
			w.samples = append(w.samples, s)
		}
		if time.Since(verified) >= verifyEvery {
			verified = time.Now()
			if err := w.node.weir.check(ctx); err != nil && ctx.Err() == nil {
				w.report.leak("verification: %v", err)
			}
		}
		w.node.weir.ending.Unlock()
	}
}

// finish looks at the process once traffic and faults are over.
func (w *watch) finish() error {
	ctx, cancel := context.WithTimeout(context.Background(), patience.For(30*time.Second))
	defer cancel()
	if err := w.node.weir.check(ctx); err != nil {
		return err
	}
	s, err := w.node.admin.status(ctx)
	if err != nil {
		return err
	}
	if !s.Healthy {
		w.report.leak("not healthy in the end: %s", s.Unhealthy)
	}
	if len(s.Neighbors) > mostNeighbors {
		w.report.leak("%d neighbors", len(s.Neighbors))
	}
	w.report.flows, w.report.drops = s.Flows.Current, s.Drops
	w.report.repeated = s.repeated()
	if w.node.cfg.cached() && w.report.repeated == 0 {
		w.report.leak("the kernel has forwarded no packet for the last process")
	}
	w.report.life = w.samples
	return nil
}

func sampleOf(pid int) (sample, error) {
	s := sample{at: time.Now(), pid: pid}
	files, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		return s, err
	}
	s.files = len(files)
	f, err := os.Open(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return s, err
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if rest, ok := strings.CutPrefix(lines.Text(), "RssAnon:"); ok {
			kb, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(rest, "kB")), 10, 64)
			s.bytes = kb << 10
			return s, err
		}
	}
	return s, fmt.Errorf("process %d has no RssAnon", pid)
}

// slope is the growth of memory in bytes per minute, by least squares, over the time from
// warmUp on; ok is false with too few samples.
func slope(life []sample) (perMinute float64, ok bool) {
	var n, sumX, sumY, sumXX, sumXY float64
	for _, s := range life {
		if x := s.at.Sub(life[0].at) - warmUp; x >= 0 {
			x, y := x.Minutes(), float64(s.bytes)
			n, sumX, sumY, sumXX, sumXY = n+1, sumX+x, sumY+y, sumXX+x*x, sumXY+x*y
		}
	}
	d := n*sumXX - sumX*sumX
	if n < fewest || d == 0 {
		return 0, false
	}
	return (n*sumXY - sumX*sumY) / d, true
}
