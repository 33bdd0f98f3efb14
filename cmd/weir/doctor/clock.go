package doctor

import (
	"time"

	"golang.org/x/sys/unix"
)

// largestJump is the largest change of the clock, since the start of Weir, that a slowly
// adjusted clock may have.
const largestJump = 2 * time.Second

// clock judges the machine's clock: last known state and the times in log and status depend on
// it.
func (p *patient) clock() {
	var t unix.Timex
	state, err := unix.Adjtimex(&t)
	switch {
	case err != nil:
		p.add(Warning, "clock", "adjtimex: %v", err)
	case state == unix.TIME_ERROR || t.Status&unix.STA_UNSYNC != 0:
		p.add(Warning, "clock", "it is not synchronized: times of logs, and the age of the last known state, are wrong").
			mend("timedatectl set-ntp true, or start chronyd")
	default:
		p.add(OK, "clock", "it is synchronized, to within %v", time.Duration(t.Maxerror)*time.Microsecond)
	}
	if p.status == nil {
		return
	}
	// The time of the start, and the time since, which no change of the clock alters.
	now := p.status.StartTime.Add(time.Duration(p.status.UptimeSeconds * float64(time.Second)))
	if jump := time.Since(now).Round(time.Second); jump.Abs() > largestJump {
		p.add(Warning, "clock", "it has jumped by %v since the start of Weir", jump).
			mend("chronyc tracking, or timedatectl timesync-status, shows why")
	}
}
