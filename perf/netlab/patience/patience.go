// Package patience bounds waits on a machine that may be slow, or busy with other work.
//
// A time that is enough on a quiet machine is multiplied by a factor that is measured:
// how long a fixed piece of work takes, and how many threads want a CPU. It is for
// deadlines of events that should happen. A wait for an event that should not happen keeps
// its time.
package patience

import (
	"fmt"
	"math/bits"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Variable names the environment variable that replaces the measurement: a number from
// 1, for example WEIR_SLOW=4.
const Variable = "WEIR_SLOW"

// most bounds the factor: beyond it a failure would take too long to be seen.
const most = 20

// For returns d, which is enough on a quiet machine, as it is on this machine now.
func For(d time.Duration) time.Duration {
	return time.Duration(float64(d) * Factor())
}

// Factor returns how many times slower than a quiet machine this machine is, from 1. The
// speed is measured once, the load is that of the last second.
func Factor() float64 {
	if set, ok := override(); ok {
		return set
	}
	return min(most, max(1, speed(), load()))
}

var override = sync.OnceValues(func() (float64, bool) {
	text := os.Getenv(Variable)
	if text == "" {
		return 0, false
	}
	f, err := parseOverride(text)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 0, false
	}
	return f, true
})

func parseOverride(text string) (float64, error) {
	f, err := strconv.ParseFloat(text, 64)
	if err != nil || !(f >= 1 && f <= 1000) {
		return 0, fmt.Errorf("%s=%q is not a number from 1 to 1000: slowness is measured", Variable, text)
	}
	return f, nil
}

// quietWork is the duration of the fixed piece of work on a quiet server CPU of 2020.
const quietWork = 25 * time.Millisecond

// speed returns how many times longer than that it takes here, once measured. An
// emulated CPU takes ten times as long; a busy one lets others run in between.
var speed = sync.OnceValue(func() float64 {
	began := time.Now()
	work()
	return float64(time.Since(began)) / float64(quietWork)
})

// worked keeps the compiler from leaving the work out.
var worked atomic.Uint64

// work is a chain of multiplications, which no CPU does side by side.
func work() {
	x := uint64(1)
	for range 10_000_000 {
		hi, lo := bits.Mul64(x|1, 0x9e3779b97f4a7c15)
		x = hi ^ lo
	}
	worked.Add(x)
}

// loadFor is how long a look at the load holds.
const loadFor = time.Second

var lately struct {
	sync.Mutex
	at   time.Time
	load float64
}

// load returns how many threads want each CPU, from 0: the greater of the threads that want
// a CPU now and the average of the last minute.
func load() float64 {
	lately.Lock()
	defer lately.Unlock()
	if now := time.Now(); now.Sub(lately.at) > loadFor {
		text, _ := os.ReadFile("/proc/loadavg") // without it the machine counts as idle
		lately.at, lately.load = now, parseLoad(string(text))/float64(runtime.NumCPU())
	}
	return lately.load
}

// parseLoad returns the load of the last minute in /proc/loadavg, or the number of
// runnable threads if that is greater (proc_loadavg(5)); 0 for any other text.
func parseLoad(text string) float64 {
	fields := strings.Fields(text)
	if len(fields) < 4 {
		return 0
	}
	average, err := strconv.ParseFloat(fields[0], 64)
	if err != nil {
		return 0
	}
	running, _, _ := strings.Cut(fields[3], "/")
	now, err := strconv.ParseFloat(running, 64)
	if err != nil {
		return average
	}
	return max(average, now)
}

// Progress waits until done is closed, as long as moved keeps changing: it returns
// false when done is still open and moved has not changed for a time that is quiet on a
// quiet machine.
func Progress(done <-chan struct{}, quiet time.Duration, moved func() int64) bool {
	last, since := moved(), time.Now()
	tick := time.NewTicker(quiet / 50)
	defer tick.Stop()
	for {
		select {
		case <-done:
			return true
		case <-tick.C:
		}
		if now := moved(); now != last {
			last, since = now, time.Now()
		} else if time.Since(since) > For(quiet) {
			return false
		}
	}
}
