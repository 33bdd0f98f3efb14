package patience

import (
	"sync/atomic"
	"testing"
	"time"
)

func TestParseLoad(t *testing.T) {
	for text, want := range map[string]float64{
		"0.20 0.18 0.12 1/80 11206\n": 1,
		"7.50 5.00 3.00 3/80 11206\n": 7.5,
		"0.50 5.00 3.00 9/80 11206\n": 9,
		"0.50 5.00 3.00 x/80 11206\n": 0.5,
		"x 5.00 3.00 9/80 11206\n":    0,
		"":                            0,
	} {
		if got := parseLoad(text); got != want {
			t.Errorf("%q: %v, want %v", text, got, want)
		}
	}
}

func TestParseOverride(t *testing.T) {
	for text, ok := range map[string]bool{"1": true, "4.5": true, "0.5": false, "-1": false, "x": false, "NaN": false, "1e9": false} {
		if f, err := parseOverride(text); (err == nil) != ok {
			t.Errorf("%q: %v, %v", text, f, err)
		}
	}
}

func TestFactorNeverShortensAWait(t *testing.T) {
	if f := Factor(); f < 1 {
		t.Errorf("factor %v", f)
	}
	if got := For(time.Second); got < time.Second {
		t.Errorf("a second becomes %v", got)
	}
}

func TestProgressGoesOnWhileSomethingMoves(t *testing.T) {
	done := make(chan struct{})
	var moved atomic.Int64
	// Twenty times as long as would be waited for something that stands still.
	const quiet = time.Millisecond
	go func() {
		defer close(done)
		for end := time.Now().Add(For(20 * quiet)); time.Now().Before(end); {
			moved.Add(1)
		}
	}()
	if !Progress(done, quiet, func() int64 { return moved.Add(1) }) {
		t.Error("given up while it moved")
	}
	if Progress(make(chan struct{}), quiet, func() int64 { return 7 }) {
		t.Error("what stands still is done")
	}
}
