package steer

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"

	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Mode says where in the receive path the program runs.
type Mode uint8

const (
	// Auto is native where the driver can, else generic.
	Auto Mode = iota
	// Native: in the driver, before the kernel makes a packet buffer.
	Native
	// Generic: in the kernel's receive path, after GRO, on any interface.
	Generic
)

func (m Mode) String() string {
	switch m {
	case Auto:
		return "auto"
	case Native:
		return "native"
	case Generic:
		return "generic"
	}
	return fmt.Sprintf("mode(%d)", uint8(m))
}

// VLAN is a network on an interface, by the tag of the packets: the tag's
// EtherType in bits 16..31 (802.1Q's VLAN 100 and 802.1ad's are two networks), the
// number in 0..15. 0 is the untagged network, to which priority-tagged frames belong.
type VLAN uint32

// Number is the VLAN's number, 1 to 4094.
func (v VLAN) Number() uint16 { return uint16(v) }

// Interface names the interface to attach to, with options.
type Interface struct {
	Index int  // in the network namespace of the calling thread
	Slot  int  // Weir's number of it, below MaxSlots; part of the socket map's key
	Mode  Mode // Auto, Native or Generic

	// PinDir is the directory for the link's pin; "" is DefaultPinDir.
	PinDir string

	// Hook is where the packets are taken, XDP or TCX. With TCX, Inner is the index of the
	// inner end of the interface's veth pair, and Mode is Auto or Native.
	Hook  Hook
	Inner int

	// Steers leaves out the forwarding by the flow table: all packets of Weir's go to the sockets.
	Steers bool

	// All makes every IP packet to the interface's address Weir's, but not ARP
	// and neighbor discovery: for the host veth, to which the kernel routes Weir's packets.
	All bool

	// VLANs, if not nil, are the VLANs of the interface that are Weir's, each with the
	// destination address of the packets; MAC is then ignored.
	VLANs map[VLAN]net.HardwareAddr

	// MAC is the destination address of packets to look at; nil is the
	// interface's own.
	MAC net.HardwareAddr
}

// Attachment is the program on an interface.
type Attachment struct {
	IfIndex int
	Slot    int
	Hook    Hook
	Mode    Mode // granted: Native or Generic; with TCX that of the inner end

	// Pinned says that the attachment outlives the process; PinError why not.
	Pinned   bool
	PinError error
	PinPath  string

	// Adopted says that a link of an earlier process was taken over, so that
	// nothing was detached.
	Adopted bool

	// NativeError is why the driver refused, where Auto became Generic.
	NativeError error

	link   link.Link
	inner  *Attachment // with TCX: the inner end's
	all    bool
	steers bool
	mac    net.HardwareAddr
	vlans  map[VLAN]net.HardwareAddr
}

// Attached reports whether the program is still on the interface. The kernel takes
// it off an interface that is deleted.
func (a *Attachment) Attached() bool {
	if _, err := a.link.Info(); err != nil {
		return true // not known
	}
	return linkIfIndex(a.link) == a.IfIndex && (a.inner == nil || a.inner.Attached())
}

// links attaches the programs to interfaces, by new links or by those of an earlier process.
type links struct{ programs *programs }

// attach attaches the program of an interface at its hook.
func (l links) attach(in Interface, name string) (*Attachment, error) {
	if in.Hook == TCX {
		return l.attachTCX(in, name)
	}
	return l.attachHook(in, name)
}

// attachHook attaches the program of an interface at its hook, and then takes a program of
// Weir's off the other hook: meanwhile the kernel would reset connections.
func (l links) attachHook(in Interface, name string) (*Attachment, error) {
	pin, pins, pinErr := preparePin(in.PinDir, name, in.Hook)
	a, err := l.attachPinned(in, pin, pins, pinErr)
	if err != nil || pinErr != nil {
		return a, err
	}
	if err := removeOtherHook(pin, in, pins); err != nil {
		return nil, errors.Join(err, a.end(true))
	}
	return a, nil
}

// attachPinned adopts the pinned link, or else makes a link and pins it. pinErr is why nothing
// can be pinned.
func (l links) attachPinned(in Interface, pin string, pins []pinned, pinErr error) (*Attachment, error) {
	a := &Attachment{
		IfIndex: in.Index, Slot: in.Slot, Hook: in.Hook, Mode: Native,
		all: in.All, steers: in.Steers, mac: in.MAC, vlans: in.VLANs,
	}
	if pinErr == nil {
		old, err := l.openPinned(pin, in, pins)
		if errors.Is(err, errForeign) {
			pinErr = err // there is no place for a pin of this name
		} else if err != nil {
			return nil, err
		}
		if old != nil {
			if in.Hook == XDP {
				if a.Mode, err = attachedMode(in.Index); err != nil {
					_ = old.Close()
					return nil, err
				}
			}
			a.link, a.Adopted, a.Pinned, a.PinPath = old, true, true, pin
			return a, nil
		}
	}
	if err := l.attachNew(a, in); err != nil {
		return nil, err
	}
	if pinErr == nil {
		pinErr = a.link.Pin(pin)
	}
	if pinErr != nil {
		a.PinError = fmt.Errorf("pin in %s: %w", filepath.Dir(pin), pinErr)
		return a, nil
	}
	a.Pinned, a.PinPath = true, pin
	return a, nil
}

// openPinned returns the link pinned at path, with the program of in under it. It returns
// nil if there is none, or none that fits: such a link is removed.
func (l links) openPinned(path string, in Interface, pins []pinned) (link.Link, error) {
	if err := followRename(path, in, pins); err != nil {
		return nil, err
	}
	old, err := openPin(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if reusable(old, in) {
		prog, err := l.programs.of(in)
		if err != nil {
			return nil, errors.Join(err, old.Close()) // the last program stays attached
		}
		if err = old.Update(prog); err == nil {
			return old, nil
		}
		// A link is not updated across program types or when the driver's
		// settings have changed: make a new link.
	}
	err = errors.Join(old.Unpin(), old.Close())
	if err != nil {
		return nil, fmt.Errorf("remove pinned link %s: %w", path, err)
	}
	return nil, nil
}

// attachNew makes a link, in the best mode that is granted.
func (l links) attachNew(a *Attachment, in Interface) error {
	var err error
	if in.Hook == TCX {
		a.link, err = l.newTCX(in.Index)
		return err
	}
	if in.Mode != Generic {
		a.link, err = l.attachMode(in, link.XDPDriverMode)
		if err == nil {
			a.Mode = Native
			return nil
		}
		err = fmt.Errorf("native XDP: %w%s", err, attachErrorHint(err))
		if in.Mode == Native || inUse(err) {
			return err
		}
		a.NativeError = err
	}
	a.link, err = l.attachMode(in, link.XDPGenericMode)
	if err != nil {
		return errors.Join(a.NativeError, fmt.Errorf("generic XDP: %w%s", err, attachErrorHint(err)))
	}
	a.Mode = Generic
	return nil
}

func (l links) attachMode(in Interface, flags link.XDPAttachFlags) (link.Link, error) {
	prog, err := l.programs.of(in)
	if err != nil {
		return nil, err
	}
	return link.AttachXDP(link.XDPOptions{Program: prog, Interface: in.Index, Flags: flags})
}

// inUse: another program is attached, in whatever mode.
func inUse(err error) bool {
	return errors.Is(err, unix.EBUSY) || errors.Is(err, unix.EEXIST)
}

// attachErrorHint explains the most likely meaning of the kernel's error, with a remedy.
func attachErrorHint(err error) string {
	switch {
	case inUse(err):
		return " (another XDP program is attached: see `ip link` or `bpftool net`)"
	case errors.Is(err, unix.ERANGE):
		return " (the MTU is too large for the driver: lower it)"
	case errors.Is(err, unix.ENOSPC):
		return " (too few queues: the driver needs one more set per CPU, or, on veth, as many receive queues as the peer has transmit queues)"
	case errors.Is(err, unix.EOPNOTSUPP):
		return " (the driver has no native XDP, or not with its present settings: MTU, LRO, GRO_HW)"
	case errors.Is(err, unix.EINVAL):
		return " (driver settings: try a lower MTU, `ethtool -K IFACE lro off rx-gro-hw off`)"
	case errors.Is(err, unix.EPERM):
		return " (needs CAP_NET_ADMIN and CAP_BPF)"
	}
	return ""
}

// attachedMode asks the kernel in which mode a program is attached.
func attachedMode(ifindex int) (Mode, error) {
	dev, err := netlink.LinkByIndex(ifindex)
	if err != nil {
		return Auto, fmt.Errorf("ask for the XDP mode: %w", err)
	}
	xdp := dev.Attrs().Xdp
	if xdp == nil || !xdp.Attached {
		return Auto, errors.New("ask for the XDP mode: no program is attached")
	}
	if xdp.AttachMode == nl.XDP_ATTACHED_SKB {
		return Generic, nil
	}
	return Native, nil
}

// end lets go of an attachment's link; remove also takes it off the interface.
func (a *Attachment) end(remove bool) error {
	var errs []error
	if remove {
		if a.Pinned {
			errs = append(errs, a.link.Unpin())
			_ = os.Remove(filepath.Dir(a.PinPath)) // if it was the last
		}
		errs = append(errs, detachLink(a.link)) // not only close: another process may hold the link too
	}
	return errors.Join(append(errs, a.link.Close())...)
}

// innerIndex is the index of the inner end of the interface's veth pair, 0 without one.
func (a *Attachment) innerIndex() int {
	if a.inner == nil {
		return 0
	}
	return a.inner.IfIndex
}

// asked is the interface as it was asked for, with its present address and VLANs.
func (a *Attachment) asked() Interface {
	return Interface{
		Index: a.IfIndex, Slot: a.Slot, Hook: a.Hook, Inner: a.innerIndex(),
		All: a.all, Steers: a.steers, MAC: a.mac, VLANs: a.vlans,
	}
}
