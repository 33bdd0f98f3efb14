package steer

import (
	"errors"
	"fmt"
	"net"
	"os"
	"slices"

	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
)

// Attach attaches the program to an interface; see AttachInterface.
func (p *Program) Attach(ifindex, slot int, mode Mode, pinDir string) (*Attachment, error) {
	return p.AttachInterface(Interface{Index: ifindex, Slot: slot, Mode: mode, PinDir: pinDir})
}

// AttachInterface attaches the program to an interface of the calling thread's
// network namespace. A link that an earlier process has left pinned is adopted
// unless it runs in another mode than asked for. Pins of interfaces that are
// gone are removed.
//
// Two processes must not attach to the same interface: the later takes it over. Bind
// the AF_XDP sockets first, which the kernel refuses to the later one.
func (p *Program) AttachInterface(in Interface) (*Attachment, error) {
	if err := checkSlot(in.Slot, 0); err != nil {
		return nil, err
	}
	dev, err := netlink.LinkByIndex(in.Index)
	if err != nil {
		return nil, fmt.Errorf("attach to interface %d: %w", in.Index, err)
	}
	name := dev.Attrs().Name
	if in.MAC == nil {
		in.MAC = dev.Attrs().HardwareAddr
	}
	if in.PinDir == "" {
		in.PinDir = DefaultPinDir
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, a := range p.attached {
		if a.IfIndex == in.Index || a.Slot == in.Slot {
			return nil, fmt.Errorf("attach to %s: slot %d already has interface %d", name, a.Slot, a.IfIndex)
		}
	}
	unguard := p.releaseGuard(in.Index)
	err = errors.Join(p.interfaces.setVLANs(in.Index, in.Inner, nil, in.VLANs), p.interfaces.announce(in))
	var a *Attachment
	if err == nil {
		a, err = p.links.attach(in, name)
	}
	if err != nil {
		unguard()
		_ = p.interfaces.remove(in.Index, in.Inner)
		_ = p.interfaces.setVLANs(in.Index, in.Inner, in.VLANs, nil)
		return nil, fmt.Errorf("attach to %s: %w", name, err)
	}
	p.attached = append(p.attached, a)
	p.slots = max(p.slots, in.Slot+1)
	return a, nil
}

// SetMAC changes the destination address of the packets that are looked at,
// after the interface's own has changed.
func (p *Program) SetMAC(ifindex int, mac net.HardwareAddr) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, a := range p.attached {
		if a.IfIndex == ifindex {
			a.mac = mac
			return p.interfaces.announce(a.asked())
		}
	}
	return fmt.Errorf("set address of interface %d: not attached", ifindex)
}

// SetVLANs changes the VLANs of an attached interface that are Weir's, or their
// addresses; as in Interface.VLANs, nil makes the untagged packets Weir's.
func (p *Program) SetVLANs(ifindex int, vlans map[VLAN]net.HardwareAddr) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, a := range p.attached {
		if a.IfIndex != ifindex {
			continue
		}
		old := a.vlans
		a.vlans = vlans
		if (old == nil) == (vlans == nil) {
			return p.interfaces.setVLANs(ifindex, a.innerIndex(), old, vlans)
		}
		// The program looks up the VLANs only with the flag set.
		return errors.Join(p.interfaces.setVLANs(ifindex, a.innerIndex(), old, vlans), p.interfaces.announce(a.asked()))
	}
	return fmt.Errorf("set VLANs of interface %d: not attached", ifindex)
}

// Refresh puts the program of an attachment on every receive queue that the interface has now.
func (p *Program) Refresh(a *Attachment) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.links.refresh(a)
}

// Detach takes the program off an interface, and removes the pin.
func (p *Program) Detach(a *Attachment) error { return p.release(a, true) }

// release lets go of an attachment; remove also ends it.
func (p *Program) release(a *Attachment, remove bool) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	i := slices.Index(p.attached, a)
	if i < 0 {
		return nil
	}
	p.attached = slices.Delete(p.attached, i, i+1)
	errs := []error{a.end(remove)}
	if a.inner != nil {
		errs = append(errs, a.inner.end(remove))
	}
	if remove {
		errs = append(errs, p.interfaces.remove(a.IfIndex, a.innerIndex()), p.interfaces.setVLANs(a.IfIndex, a.innerIndex(), a.vlans, nil), p.sockets.noteNone(a.Slot))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("detach from interface %d: %w", a.IfIndex, err)
	}
	return nil
}

// DetachOthers takes the program of an earlier process off the interfaces of the calling
// thread's network namespace to which p is not attached: they were configured then. It
// returns their indices. pinDir is that of the attachments, "" is DefaultPinDir.
func (p *Program) DetachOthers(pinDir string) (indices []int, err error) {
	if pinDir == "" {
		pinDir = DefaultPinDir
	}
	ns, err := netnsInode()
	if err != nil {
		return nil, err
	}
	if err := checkBPFFS(pinDir); err != nil {
		return nil, nil // then nothing can be pinned there
	}

	p.mu.Lock()
	defer p.mu.Unlock()
	_, err = walkPins(pinDir, func(path string, l link.Link) error {
		index := linkIfIndex(l)
		kept := slices.ContainsFunc(p.attached, func(a *Attachment) bool {
			return a.IfIndex == index || a.innerIndex() == index
		})
		if kept || !ofNetns(path, ns) {
			return nil
		}
		if err := detachPinned(l); err != nil {
			return fmt.Errorf("detach from interface %d: %w", index, err)
		}
		indices = append(indices, index)
		return nil
	})
	if len(indices) > 0 {
		_ = os.Remove(pinDir) // if it was the last
	}
	return indices, err
}
