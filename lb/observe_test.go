package lb

import (
	"errors"
	"runtime"
	"testing"

	"github.com/weirlb/weir/lb/tap"
	"github.com/weirlb/weir/lb/worker"
)

// A tap beyond the limit is refused before it has memory.
func TestATapBeyondTheLimitTakesNoMemory(t *testing.T) {
	ts := &taps{workers: &workers{list: make([]*worker.Worker, 4)}, list: make([]*tap.Tap, worker.MaxTaps)}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, _, err := ts.add(tap.Config{SnapLen: 256, Bytes: 8 << 20})
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; !errors.Is(err, ErrTaps) || n > 1<<20 {
		t.Errorf("%v, with %d bytes of memory", err, n)
	}
}
