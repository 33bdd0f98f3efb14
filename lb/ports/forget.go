package ports

import (
	"fmt"
	"slices"

	"github.com/weirlb/weir/lb/steer"
	"github.com/weirlb/weir/lb/warning"
)

// forgetful are drivers that forget a native XDP program when they stop the device: it was set
// down, got another MTU or other rings, or was reset after a hang. The kernel goes on reporting
// the program as attached, and gets all packets (vmxnet3_rq_cleanup_all, Linux 6.6 on).
var forgetful = []string{"vmxnet3"}

// mayForget reports whether the driver of a port may forget the program.
func (p *port) mayForget() bool {
	return slices.Contains(forgetful, p.driver) && p.hook == steer.XDP &&
		p.attachment != nil && p.attachment.Mode == steer.Native
}

// keepProgram gives the program to the driver of a port again if that may have forgotten it since
// the last look: such a driver switches the carrier off when it stops the device. To take a program
// that it has forgotten it stops the device once more. A program that it still has is replaced
// without that, so that the look behind ends the changes. The first look gives it again too: the
// program of an earlier process may be forgotten already.
func (ps *Ports) keepProgram(p *port, changes func(index int) (uint32, error), refresh func(*steer.Attachment) error) {
	if !p.mayForget() {
		return
	}
	n, err := changes(p.index)
	if err != nil || n == p.carrierChanges {
		return // or the interface is gone, which is noticed elsewhere
	}
	if err := refresh(p.attachment); err != nil { // for example, the MTU is too large by now
		ps.warnings.Replace(warning.Unreadable, p.name, fmt.Sprintf("the driver %s has forgotten the XDP program and does not take it again: "+
			"the kernel gets the packets: %v", p.driver, err))
		return
	}
	ps.warnings.Retract(warning.Unreadable, p.name)
	ps.log.Info("gave the XDP program to the driver again, which forgets it when the link goes down", "interface", p.name)
	p.carrierChanges = n // not the changes by now: a stop meanwhile must not be missed
}
