package process

import (
	"bytes"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// clockTicks is USER_HZ, the unit of times in /proc: 100 on every architecture of Go.
const clockTicks = 100

// startTimeField is the number of starttime in /proc/self/stat behind the name, which is in
// parentheses (proc_pid_stat(5): field 22, the name is field 2).
const startTimeField = 22 - 3

// StartOf is when the start began. again is set where the process was executed again.
func StartOf(again bool) time.Time {
	if again {
		return time.Now()
	}
	return processStart()
}

// processStart is when the process was started, to 10 ms; now if that is not known.
func processStart() time.Time {
	now := time.Now()
	text, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		return now
	}
	fields := bytes.Fields(text[bytes.LastIndexByte(text, ')')+1:])
	if len(fields) <= startTimeField {
		return now
	}
	ticks, err := strconv.ParseInt(string(fields[startTimeField]), 10, 64)
	var up unix.Timespec
	if err != nil || unix.ClockGettime(unix.CLOCK_BOOTTIME, &up) != nil {
		return now
	}
	age := time.Duration(up.Nano()) - time.Duration(ticks)*(time.Second/clockTicks)
	return now.Add(-max(age, 0))
}
