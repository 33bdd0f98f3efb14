package e2e

import (
	"fmt"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// The wall clock is set forward and back while Weir runs and while it does not. It is that of
// the whole machine, which has to be a virtual one for this.
func TestGuestClockSteps(t *testing.T) {
	if os.Getenv("WEIR_MAY_SET_CLOCK") == "" {
		t.Skip("no leave to set the clock of this machine (WEIR_MAY_SET_CLOCK): run this by make test-vm")
	}
	f := ownFixture(t, options{services: kinds, extra: "death: {holdSeconds: 600}\n"})
	f.goingOn(t, f.fromClient, func() {
		for _, by := range []time.Duration{time.Hour, -25 * time.Hour, 24 * time.Hour, 10 * 365 * 24 * time.Hour, -10 * 365 * 24 * time.Hour} {
			stepClock(t, by)
			f.begins(t, fmt.Sprintf("after a step of %v", by))
			if err := f.weir.Kill(); err != nil {
				t.Fatal(err)
			}
			stepClock(t, by)
			must(t, f.start())
			f.begins(t, fmt.Sprintf("after a kill and a step of %v", by))
			stepClock(t, -by)
		}
	})
}

// stepClock sets the wall clock, from which timers of Go do not follow.
func stepClock(t *testing.T, by time.Duration) {
	t.Helper()
	var now unix.Timespec
	must(t, unix.ClockGettime(unix.CLOCK_REALTIME, &now))
	to := unix.NsecToTimespec(now.Nano() + by.Nanoseconds())
	must(t, unix.ClockSettime(unix.CLOCK_REALTIME, &to))
}
