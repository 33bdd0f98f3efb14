package steer

import (
	"errors"
	"fmt"
	"net"

	"github.com/cilium/ebpf"
)

const (
	interfaceAll   = 1 // INTERFACE_ALL in bpf/maps.h
	interfaceVLANs = 2 // INTERFACE_VLANS
)

// interfaceTable has the maps that tell the program of interfaces and their VLANs.
type interfaceTable struct {
	interfaces, vlans *ebpf.Map
	own               *ownKeys
}

// announce adds an interface, and the inner end of its veth pair, to the program's maps.
func (t *interfaceTable) announce(in Interface) error {
	f := flags(in.All, in.VLANs)
	if in.Hook == TCX { // the program on the interface has looked up whose the packets are
		if err := t.set(in.Inner, in.Slot, in.MAC, f|interfaceAll); err != nil {
			return err
		}
	}
	return t.set(in.Index, in.Slot, in.MAC, f)
}

// set tells the program of an interface. Until then it passes every
// packet of it.
func (t *interfaceTable) set(ifindex, slot int, mac net.HardwareAddr, flags uint32) error {
	if len(mac) != 6 {
		return fmt.Errorf("interface %d: %q is not an Ethernet address", ifindex, mac)
	}
	value := steerInterface{Slot: uint16(slot), Mac: [6]uint8(mac), Flags: flags}
	if err := t.interfaces.Put(uint32(ifindex), value); err != nil {
		return fmt.Errorf("set interface %d: %w", ifindex, err)
	}
	t.own.note(uint32(ifindex))
	return nil
}

// remove takes an interface and, if it is not 0, the inner end of its veth pair
// from the program.
func (t *interfaceTable) remove(ifindex, inner int) error {
	err := t.interfaces.Delete(uint32(ifindex))
	if inner != 0 {
		err = errors.Join(err, t.interfaces.Delete(uint32(inner)))
	}
	return err
}

// setVLANs brings the VLANs of an interface, and of the inner end of its veth pair, from old to want.
func (t *interfaceTable) setVLANs(ifindex, inner int, old, want map[VLAN]net.HardwareAddr) error {
	var errs []error
	if inner != 0 {
		errs = append(errs, t.setVLANs(inner, 0, old, want))
	}
	for id, mac := range want {
		if len(mac) != 6 {
			errs = append(errs, fmt.Errorf("VLAN %d of interface %d: %q is not an Ethernet address", id.Number(), ifindex, mac))
			continue
		}
		k, v := steerVlanKey{Ifindex: uint32(ifindex), Vlan: uint32(id)}, steerVlan{Mac: [6]uint8(mac)}
		if err := t.vlans.Put(k, v); err != nil {
			errs = append(errs, fmt.Errorf("set VLAN %d of interface %d: %w", id.Number(), ifindex, err))
		}
		t.own.note(k)
	}
	for id := range old {
		if _, ok := want[id]; ok {
			continue
		}
		err := t.vlans.Delete(steerVlanKey{Ifindex: uint32(ifindex), Vlan: uint32(id)})
		if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			errs = append(errs, fmt.Errorf("remove VLAN %d of interface %d: %w", id.Number(), ifindex, err))
		}
	}
	return errors.Join(errs...)
}

func flags(all bool, vlans map[VLAN]net.HardwareAddr) (f uint32) {
	if all {
		f |= interfaceAll
	}
	if vlans != nil {
		f |= interfaceVLANs
	}
	return f
}
