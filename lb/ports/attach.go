package ports

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"github.com/weirlb/weir/lb/ports/offload"
	"github.com/weirlb/weir/lb/steer"
	"github.com/weirlb/weir/lb/warning"
)

// steering puts the steering program on devices, with all that it needs there.
type steering struct {
	program   *steer.Program
	pinDir    string
	frameSize int // of the packet memory
	noCache   error
	list      *portList
	offloads  *offload.Record
	guarded   map[int]bool // devices that a guard was asked for, by index; see guard
	warnings  *warning.List
	log       *slog.Logger
}

// attach puts the steering program on a device.
func (st *steering) attach(id int, p *port) error {
	if !p.host {
		if err := st.disableOffloads(p, p.steerMode()); err != nil {
			return err
		}
	}
	p.steersOnly = slices.ContainsFunc(p.sockets, isZeroCopy)
	a, err := st.program.AttachInterface(steer.Interface{
		Index: p.index, Slot: id, Mode: p.steerMode(), PinDir: st.pinDir, All: p.host,
		Hook: p.hook, Inner: p.innerIndex(), Steers: p.steersOnly,
		MAC: p.mac[:], VLANs: st.list.vlans(id),
	})
	if err != nil {
		if p.host && !st.program.Frags() && p.mtu > largestMTU(st.frameSize) {
			err = fmt.Errorf("%w: the veth pair into the kernel's stack has the largest MTU of the interfaces, %d: "+
				"before Linux 5.18 lower theirs to %d", err, p.mtu, largestMTU(st.frameSize))
		}
		return err
	}
	p.attachment = a
	if !a.Pinned {
		st.warnings.Add(warning.Interface, p.name, "the link of the program is not pinned, so a restart detaches for a moment: %v", a.PinError)
	}
	if a.Mode == steer.Generic {
		return st.acceptGeneric(p)
	}
	return nil
}

// acceptGeneric checks a port where the program runs after the kernel has made its
// packet buffers, and warns of it.
func (st *steering) acceptGeneric(p *port) error {
	native := p.attachment.NativeError
	for _, s := range p.sockets {
		if zeroCopy, _, _ := s.Granted(); zeroCopy {
			return fmt.Errorf("zero copy was granted but not native XDP (%w): set mode: generic", native)
		}
	}
	if native != nil {
		st.warnings.Add(warning.Interface, p.name, "no native XDP (%v): running in generic mode, several times slower; "+
			"remove what stands in its way, or say mode: generic if it is meant "+
			"(mode: native refuses to start)", native)
	}
	if p.driver == veth {
		st.warnings.Add(warning.Interface, p.name, "a veth in generic mode gets packets larger than the MTU, which are lost: "+
			"run `ethtool -K PEER tso off gso off` at its peer, or use native mode")
	}
	return st.disableOffloads(p, steer.Generic)
}

func (st *steering) disableOffloads(p *port, mode steer.Mode) error {
	off, err := st.offloads.Disable(p.name, p.hook, mode)
	if len(off) > 0 {
		st.warnings.Add(warning.Offloads, p.name, "switched off %s, to be put back at the end: "+
			"packets must arrive as they were on the wire", strings.Join(off, ", "))
	}
	return err
}

// releaseOthers detaches from interfaces that are not configured any more. An earlier
// process, which was killed or ended for a restart, was attached to them.
func (st *steering) releaseOthers() {
	indices, err := st.program.DetachOthers(st.pinDir)
	for _, index := range indices {
		st.log.Info("detached from an interface of the last process", "index", index)
	}
	if err != nil {
		st.log.Error("interfaces of the last process", "err", err)
	}

	if err := st.offloads.RestoreOthers(func(name string) bool {
		return slices.ContainsFunc(st.list.ports, func(p *port) bool { return p.name == name })
	}); err != nil {
		st.log.Error("offloads", "err", err)
	}
}

// detach takes the steering program off a device. gone reports that the device no longer exists:
// another may have the name.
func (st *steering) detach(p *port, gone bool) {
	if p.attachment != nil {
		if err := st.program.Detach(p.attachment); err != nil {
			st.log.Error("detach", "interface", p.name, "err", err)
		}
		p.attachment = nil
	}
	restore := st.offloads.RestoreLink
	if gone {
		restore = func(name string, _ int) error { return st.offloads.Forget(name) }
	}
	if err := restore(p.name, p.index); err != nil {
		st.log.Error("offloads", "interface", p.name, "err", err)
	}
}

// updateAddresses gives the steering program the MAC addresses and VLANs of a port's
// device.
func (st *steering) updateAddresses(id int) error {
	if p := st.list.ports[id]; p.isVLAN() {
		id = p.vlanParent
	}
	d := st.list.ports[id]
	if err := st.program.SetVLANs(d.index, st.list.vlans(id)); err != nil {
		return err
	}
	return st.program.SetMAC(d.index, d.mac[:])
}

// steerTo gives the steering program the sockets of a port.
func (st *steering) steerTo(id int, p *port) error {
	var fds []int
	for _, s := range p.receiving() {
		fds = append(fds, s.FD())
	}
	if err := st.program.SetSockets(id, fds); err != nil {
		return fmt.Errorf("interface %s: %w", p.name, err)
	}
	return nil
}

// keepProgram gives the program to the driver of a port again if that may have forgotten it since
// the last look: such a driver switches the carrier off when it stops the device. To take a program
// that it has forgotten it stops the device once more. A program that it still has is replaced
// without that, so that the look behind ends the changes. The first look gives it again too: the
// program of an earlier process may be forgotten already.
func (st *steering) keepProgram(p *port, changes func(index int) (uint32, error), refresh func(*steer.Attachment) error) {
	if !p.mayForget() {
		return
	}
	n, err := changes(p.index)
	if err != nil || n == p.carrierChanges {
		return // or the interface is gone, which is noticed elsewhere
	}
	if err := refresh(p.attachment); err != nil { // for example, the MTU is too large by now
		st.warnings.Replace(warning.Unreadable, p.name, fmt.Sprintf("the driver %s has forgotten the XDP program and does not take it again: "+
			"the kernel gets the packets: %v", p.driver, err))
		return
	}
	st.warnings.Retract(warning.Unreadable, p.name)
	st.log.Info("gave the XDP program to the driver again, which forgets it when the link goes down", "interface", p.name)
	p.carrierChanges = n // not the changes by now: a stop meanwhile must not be missed
}
