// Package growth measures how the work of a function grows with the size of the input. It reads
// the CPU time of the calling thread, which other processes on the machine do not add to.
package growth

import (
	"runtime"
	"runtime/debug"
	"time"

	"golang.org/x/sys/unix"
)

// turns is how often a size is measured. The shortest time counts.
const turns = 4

// Ratio is the CPU time of work at size large, as a multiple of that at size small. prepare makes
// the work of a size: its own time does not count. Work is called once.
func Ratio(small, large int, prepare func(size int) (work func())) float64 {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	var least [2]time.Duration
	for range turns {
		for i, size := range []int{small, large} {
			work := prepare(size)
			runtime.GC()
			start := threadTime()
			work()
			d := threadTime() - start
			if least[i] == 0 || d < least[i] {
				least[i] = d
			}
		}
	}
	return float64(least[1]) / float64(max(least[0], 1))
}

// threadTime is the CPU time that the calling thread has used.
func threadTime() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t); err != nil {
		panic(err) // the clock is there since Linux 2.6.12
	}
	return time.Duration(t.Nano())
}

// Linear is the largest Ratio of a function whose work is in proportion to the size: twice that
// of the sizes, since a large input misses caches. Work in proportion to the square has the
// square of that of the sizes.
func Linear(small, large int) float64 { return 2 * float64(large) / float64(small) }
