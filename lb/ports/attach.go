package ports

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"

	"github.com/weirlb/weir/lb/steer"
	"github.com/weirlb/weir/lb/xsk"
)

// ErrAttach is wrapped by the error of an Attach that could not attach to an interface:
// nothing is balanced there, and trying again does not help.
var ErrAttach = errors.New("attach")

// Attach puts the steering program on the ports. Preconditions: everything that the
// program leads to is in place, so that it replaces the program of an earlier process
// without a gap.
func (ps *Ports) Attach() error {
	ps.attached = true
	// The host veth, which is the last port, first: answers come by it.
	for id, p := range slices.Backward(ps.list) {
		if p.isVLAN() {
			continue // its device has the program
		}
		if err := ps.attach(id, p); err != nil {
			return fmt.Errorf("%w: interface %s: %w", ErrAttach, p.name, err)
		}
		ps.log.Info("attached", "interface", p.name, "hook", p.hook, "because", p.hookWhy,
			"mode", p.granted(), "adopted", p.attachment.Adopted, "pinned", p.attachment.Pinned)
	}
	ps.releaseOthers()
	return nil
}

// releaseOthers detaches from interfaces that are not configured any more. An earlier
// process, which was killed or ended for a restart, was attached to them.
func (ps *Ports) releaseOthers() {
	indices, err := ps.program.DetachOthers(ps.cfg.PinDir)
	for _, index := range indices {
		ps.log.Info("detached from an interface of the last process", "index", index)
	}
	if err != nil {
		ps.log.Error("interfaces of the last process", "err", err)
	}

	for name := range ps.offloads.Old {
		if slices.ContainsFunc(ps.list, func(p *port) bool { return p.name == name }) {
			continue
		}
		if err := ps.offloads.restoreOf(name); err != nil {
			ps.log.Error("offloads", "interface", name, "err", err)
		}
	}
}

// attach puts the steering program on a device.
func (ps *Ports) attach(id int, p *port) error {
	if !p.host {
		if err := ps.disableOffloads(p, p.steerMode()); err != nil {
			return err
		}
	}
	p.steersOnly = slices.ContainsFunc(p.sockets, isZeroCopy)
	a, err := ps.program.AttachInterface(steer.Interface{
		Index: p.index, Slot: id, Mode: p.steerMode(), PinDir: ps.cfg.PinDir, All: p.host,
		Hook: p.hook, Inner: p.innerIndex(), Steers: p.steersOnly,
		MAC: p.mac[:], VLANs: ps.vlans(id),
	})
	if err != nil {
		if p.host && !ps.program.Frags() && p.mtu > largestMTU(ps.memory.FrameSize()) {
			err = fmt.Errorf("%w: the veth pair into the kernel's stack has the largest MTU of the interfaces, %d: "+
				"before Linux 5.18 lower theirs to %d", err, p.mtu, largestMTU(ps.memory.FrameSize()))
		}
		return err
	}
	p.attachment = a
	if !a.Pinned {
		ps.warn(p, "the link of the program is not pinned, so a restart detaches for a moment: %v", a.PinError)
	}
	if a.Mode == steer.Generic {
		return ps.acceptGeneric(p)
	}
	return nil
}

// acceptGeneric checks a port where the program runs after the kernel has made its
// packet buffers, and warns of it.
func (ps *Ports) acceptGeneric(p *port) error {
	native := p.attachment.NativeError
	for _, s := range p.sockets {
		if zeroCopy, _, _ := s.Granted(); zeroCopy {
			return fmt.Errorf("zero copy was granted but not native XDP (%w): set mode: generic", native)
		}
	}
	if native != nil {
		ps.warn(p, "no native XDP (%v): running in generic mode, several times slower; "+
			"remove what stands in its way, or say mode: generic if it is meant "+
			"(mode: native refuses to start)", native)
	}
	if p.driver == veth {
		ps.warn(p, "a veth in generic mode gets packets larger than the MTU, which are lost: "+
			"run `ethtool -K PEER tso off gso off` at its peer, or use native mode")
	}
	return ps.disableOffloads(p, steer.Generic)
}

func (ps *Ports) disableOffloads(p *port, mode steer.Mode) error {
	off, err := ps.offloads.disable(p.name, p.hook, mode)
	if len(off) > 0 {
		ps.warn(p, "switched off %s, to be put back at the end: "+
			"packets must arrive as they were on the wire", strings.Join(off, ", "))
	}
	return err
}

// steerMode is the mode that the steering program is attached in.
func (p *port) steerMode() steer.Mode {
	switch p.mode {
	case ModeZeroCopy, ModeNative:
		return steer.Native
	case ModeGeneric:
		return steer.Generic
	}
	return steer.Auto
}

// updateAddresses gives the steering program the MAC addresses and VLANs of a port's
// device.
func (ps *Ports) updateAddresses(id int) error {
	if p := ps.list[id]; p.isVLAN() {
		id = p.vlanParent
	}
	d := ps.list[id]
	if err := ps.program.SetVLANs(d.index, ps.vlans(id)); err != nil {
		return err
	}
	return ps.program.SetMAC(d.index, d.mac[:])
}

// vlans are the VLANs of a device whose packets the program takes, with the MAC address
// of each. VLAN 0 is the device itself. nil: the device itself and no VLAN.
func (ps *Ports) vlans(id int) map[steer.VLAN]net.HardwareAddr {
	vlans := map[steer.VLAN]net.HardwareAddr{}
	for p := range ps.vlansOn(id) {
		vlans[steer.VLAN(p.tag)] = slices.Clone(p.mac[:])
	}
	d := ps.list[id]
	switch onlyVLANs := d.routeIndex == 0 && !d.host; {
	case onlyVLANs:
		return vlans // maybe none is there now
	case len(vlans) == 0:
		return nil
	}
	if d.routeIndex != 0 {
		vlans[0] = slices.Clone(d.mac[:])
	}
	return vlans
}

// granted is the mode that a port really runs in: the least of the modes of its queues.
func (p *port) granted() string {
	mode := ModeZeroCopy
	for _, s := range p.sockets {
		if m := p.grantedTo(s); m != ModeZeroCopy {
			mode = m
		}
	}
	return mode
}

// grantedTo is the mode that a queue runs in, "" before the attachment.
func (p *port) grantedTo(s *xsk.Socket) string {
	if p.attachment == nil {
		return ""
	}
	zeroCopy, _, _ := s.Granted()
	switch {
	case p.attachment.Mode == steer.Generic:
		return ModeGeneric
	case zeroCopy:
		return ModeZeroCopy
	}
	return ModeNative
}
