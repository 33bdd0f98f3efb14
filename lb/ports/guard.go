package ports

import "github.com/weirlb/weir/lb/steer"

// guard has the steering program drop Weir's packets on devices that are about to be
// attached: a connection outlives the time between the address of its interface and the
// attachment. A device that is refused is the kernel's. VLANs and members of bonds have no
// guard, nor has a device without native XDP, unless mode generic is asked for: the
// attachment would adopt generic mode.
func (ps *Ports) guard(v *view) {
	for index := range ps.guarded {
		if !v.uses(index) {
			ps.unguard(index)
		}
	}
	for _, in := range ps.cfg.Interfaces {
		for _, r := range v.ports[in.Name] {
			_, refused := ps.refused[r.Device]
			if r.VLAN != 0 || r.Member || refused || ps.guarded[r.Device] || ps.deviceID(r.Device) >= 0 {
				continue
			}
			mode := steer.Native
			if in.Mode == ModeGeneric {
				mode = steer.Generic
			}
			ps.guarded[r.Device] = true // asked for once, also after an error
			err := ps.program.Guard(steer.Interface{Index: r.Device, Mode: mode, PinDir: ps.cfg.PinDir})
			if err != nil {
				ps.log.Debug("connections may be reset until the interface is attached", "interface", in.Name, "err", err)
			}
		}
	}
}

func (ps *Ports) unguard(index int) {
	if !ps.guarded[index] {
		return
	}
	delete(ps.guarded, index)
	if err := ps.program.Unguard(index); err != nil {
		ps.log.Error("steering", "err", err)
	}
}
