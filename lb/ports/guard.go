package ports

import "github.com/weirlb/weir/lb/steer"

// guard has the steering program drop Weir's packets on devices that are about to be
// attached: a connection outlives the time between the address of its interface and the
// attachment. A device that is refused is the kernel's. VLANs and members of bonds have no
// guard, nor has a device without native XDP, unless mode generic is asked for: the
// attachment would adopt generic mode.
func (st *steering) guard(v *view, refused refusals) {
	for index := range st.guarded {
		if !v.uses(index) {
			st.unguard(index)
		}
	}
	for _, in := range v.interfaces {
		for _, r := range v.ports[in.Name] {
			_, isRefused := refused[r.Device]
			if r.VLAN != 0 || r.Member || isRefused || st.guarded[r.Device] || st.list.deviceID(r.Device) >= 0 {
				continue
			}
			mode := steer.Native
			if in.Mode == ModeGeneric {
				mode = steer.Generic
			}
			st.guarded[r.Device] = true // asked for once, also after an error
			err := st.program.Guard(steer.Interface{Index: r.Device, Mode: mode, PinDir: st.pinDir})
			if err != nil {
				st.log.Debug("connections may be reset until the interface is attached", "interface", in.Name, "err", err)
			}
		}
	}
}

// unguard ends the guard of a device, if there is one: the kernel has its packets.
func (st *steering) unguard(index int) {
	if !st.guarded[index] {
		return
	}
	delete(st.guarded, index)
	if err := st.program.Unguard(index); err != nil {
		st.log.Error("steering", "err", err)
	}
}
