package steer

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// Hold makes the program drop Weir's packets for the time d from now on where a queue has
// lost its socket, because the process has died: its connections then wait for the next
// process. Without a hold the kernel gets these packets, and answers with RST. The process
// calls Hold again and again, long before d has passed; 0 ends the hold.
//
// Queues that never had a socket, and those whose socket was cleared, are the kernel's.
func (p *Program) Hold(d time.Duration) error {
	var until uint64
	if d > 0 {
		var now unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
			return fmt.Errorf("hold: %w", err)
		}
		until = uint64(now.Nano() + d.Nanoseconds())
	}
	if err := p.holdTime.Set(until); err != nil {
		return fmt.Errorf("hold: %w", err)
	}
	return nil
}

// HoldEnded reports whether nothing is held any more, or was held at all.
func (p *Program) HoldEnded() bool {
	var until uint64
	var now unix.Timespec
	if p.holdTime.Get(&until) != nil || unix.ClockGettime(unix.CLOCK_MONOTONIC, &now) != nil {
		return false
	}
	return until < uint64(now.Nano())
}

// noteSocket notes whether a queue has a socket.
func (p *Program) noteSocket(slot, queue int, has bool) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.queues[slot] &^= 1 << queue
	p.own[slot] &^= 1 << queue
	if has {
		p.queues[slot] |= 1 << queue
		p.own[slot] |= 1 << queue
		p.took = true
	}
	return p.setHeldQueues(slot)
}

// noteNoSockets notes that no queue of a slot has a socket. The caller holds mu.
func (p *Program) noteNoSockets(slot int) error {
	p.queues[slot], p.own[slot] = 0, 0
	return p.setHeldQueues(slot)
}

func (p *Program) setHeldQueues(slot int) error {
	if err := p.maps.HeldQueues.Put(uint32(slot), p.queues[slot]); err != nil {
		return fmt.Errorf("note sockets of slot %d: %w", slot, err)
	}
	return nil
}
