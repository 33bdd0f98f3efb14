package steer

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// until is the variable of that name in the programs: see bpf/hold.h.
type until struct{ Hold, Follow uint64 }

// followAtLeast is how long the programs use recipes after the process has died, and a TCX program
// gives packets to the veth pair, if the hold is shorter. The process calls Hold several times in it.
const followAtLeast = 500 * time.Millisecond

// Hold makes the program drop Weir's packets for the time d from now on where a queue has
// lost its socket, because the process has died: its connections then wait for the next
// process. Without a hold the kernel gets these packets, and answers with RST. The process
// calls Hold again and again, long before d has passed; 0 ends the hold.
//
// The programs that read the flow table forward by it for that time, and for followAtLeast.
//
// Queues that never had a socket, and those whose socket was cleared, are the kernel's.
func (p *Program) Hold(d time.Duration) error {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return fmt.Errorf("hold: %w", err)
	}
	u := until{Follow: uint64(now.Nano() + max(d, followAtLeast).Nanoseconds())}
	if d > 0 {
		u.Hold = uint64(now.Nano() + d.Nanoseconds())
	}
	if err := p.maps.until.Set(u); err != nil {
		return fmt.Errorf("hold: %w", err)
	}
	return nil
}

// HoldEnded reports whether nothing is held any more, or was held at all.
func (p *Program) HoldEnded() bool {
	var u until
	var now unix.Timespec
	if p.maps.until.Get(&u) != nil || unix.ClockGettime(unix.CLOCK_MONOTONIC, &now) != nil {
		return false
	}
	return u.Hold < uint64(now.Nano())
}
