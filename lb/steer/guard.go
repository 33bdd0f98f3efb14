package steer

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
)

// guardSlot is the slot of guarded interfaces, the last. No queue of it has a socket, and all
// of them are held. If an attached interface has it, there is no guard.
const guardSlot = MaxSlots - 1

// Guard drops Weir's packets on an interface that is to be attached, for as long as Hold
// says: the kernel would answer packets of established connections with RST. It can be called
// while the interface is down and has no address. AttachInterface takes the link over by its
// pin, without a gap; where links cannot be pinned there is no guard. Of in, only Index, Mode
// and PinDir count.
func (p *Program) Guard(in Interface) error {
	dev, err := netlink.LinkByIndex(in.Index)
	if err != nil {
		return fmt.Errorf("guard interface %d: %w", in.Index, err)
	}
	in = Interface{Index: in.Index, Slot: guardSlot, Mode: in.Mode, PinDir: in.PinDir, MAC: dev.Attrs().HardwareAddr}
	if in.PinDir == "" {
		in.PinDir = DefaultPinDir
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, a := range p.attached {
		if a.IfIndex == in.Index {
			return nil
		}
		if a.Slot == guardSlot {
			return fmt.Errorf("guard %s: no slot is free", dev.Attrs().Name)
		}
	}
	if p.guards[in.Index] != nil {
		return nil
	}
	err = errors.Join(p.sockets.holdAll(guardSlot), p.interfaces.announce(in))
	var a *Attachment
	if err == nil {
		a, err = p.links.attachHook(in, dev.Attrs().Name)
	}
	if err == nil && !a.Pinned {
		err = errors.Join(a.PinError, a.end(true))
	}
	if err != nil {
		return fmt.Errorf("guard %s: %w", dev.Attrs().Name, errors.Join(err, p.interfaces.remove(in.Index, 0)))
	}
	if p.guards == nil {
		p.guards = map[int]*Attachment{}
	}
	p.guards[in.Index] = a
	return nil
}

// Unguard gives Weir's packets on a guarded interface to the kernel. An interface that is not
// guarded, or attached meanwhile, stays as it is.
func (p *Program) Unguard(ifindex int) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	a := p.guards[ifindex]
	if a == nil {
		return nil
	}
	delete(p.guards, ifindex)
	if err := errors.Join(a.end(true), p.interfaces.remove(ifindex, 0)); err != nil {
		return fmt.Errorf("end the guard of interface %d: %w", ifindex, err)
	}
	return nil
}

// releaseGuard leaves the link of a guard to its pin, for an attachment. undo takes the link
// off, where the attachment fails. The caller holds mu.
func (p *Program) releaseGuard(ifindex int) (undo func()) {
	a := p.guards[ifindex]
	if a == nil {
		return func() {}
	}
	delete(p.guards, ifindex)
	_ = a.link.Close()
	return func() {
		if l, err := openPin(a.PinPath); err == nil {
			_ = detachPinned(l)
			_ = l.Close()
		}
	}
}
