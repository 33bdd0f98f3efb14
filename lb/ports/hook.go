package ports

import (
	"fmt"
	"slices"

	"github.com/weirlb/weir/lb/steer"
	"github.com/weirlb/weir/lb/uppair"
	"github.com/weirlb/weir/lb/xsk"
)

// Hooks of an interface, as in the configuration file.
const (
	HookAuto = "auto"
	HookXDP  = "xdp"
	HookTCX  = "tcx"
)

// softwareKinds are the kinds of link whose packets the kernel has in buffers already, up to
// 64 KB at a time. XDP there gains nothing, and ends segmentation offload.
var softwareKinds = []string{veth, "netkit", "tuntap", "tun"}

// softwareDrivers are as softwareKinds, of devices that rtnetlink does not tell from NICs.
var softwareDrivers = []string{"virtio_net"}

// chooseHook chooses the hook of a device, with the reason, or says why the hook that was
// asked for cannot be had.
func (ps *Ports) chooseHook(id int, p *port) error {
	switch {
	case p.host && !ps.anyTCX():
		p.hook, p.hookWhy = steer.XDP, "no attached interface has hook tcx"
		return nil
	case !p.host && (p.hookAsked == "" || p.hookAsked == HookXDP):
		p.hook, p.hookWhy = steer.XDP, "it is configured"
		return nil
	}
	cannot := ps.cannotTCX(id, p) // which may load the program: that takes time
	switch asked := p.hookAsked; {
	case p.host && cannot == "":
		p.hook, p.hookWhy = steer.TCX, "as the attached interfaces: pods' answers stay large"
	case p.host:
		p.hook, p.hookWhy = steer.XDP, "tcx: "+cannot
	case asked == HookTCX && cannot != "":
		return fmt.Errorf("hook: tcx: %s", cannot)
	case asked == HookTCX:
		p.hook, p.hookWhy = steer.TCX, "it is configured"
	case cannot != "":
		p.hook, p.hookWhy = steer.XDP, "tcx: "+cannot
	case isSoftware(p):
		p.hook, p.hookWhy = steer.TCX, "a "+p.driver+" keeps segmentation offload"
	default:
		p.hook, p.hookWhy = steer.XDP, "a NIC"
	}
	return nil
}

// SetFlowCache says why the kernel forwards no established flows, nil if it does. Only
// then a hook other than xdp makes sense.
func (ps *Ports) SetFlowCache(err error) { ps.noCache = err }

// cannotTCX is why a device cannot have the TCX hook, "" if it can.
func (ps *Ports) cannotTCX(id int, p *port) string {
	carriesVLANs := p.routeIndex == 0 && !p.host
	for range ps.vlansOn(id) {
		carriesVLANs = true
	}
	if ps.noCache != nil {
		return "the kernel forwards no flows: " + ps.noCache.Error()
	}
	switch err := ps.program.TCX(); {
	case err != nil:
		return err.Error()
	case p.mode == ModeZeroCopy || p.mode == ModeGeneric:
		return "excludes mode: " + p.mode
	case carriesVLANs:
		return "VLANs are attached, which it does not know"
	}
	return ""
}

// isSoftware reports whether XDP gains nothing on a device.
func isSoftware(p *port) bool { return Software(p.driver, p.name) }

// Software reports whether XDP gains nothing on a device of the calling thread's network
// namespace. kind is rtnetlink's name of the kind.
func Software(kind, name string) bool {
	return slices.Contains(softwareKinds, kind) || slices.Contains(softwareDrivers, steer.DriverOf(name))
}

// hookReason is why a device has its hook, and what the hook does not do.
func (ps *Ports) hookReason(p *port) string {
	why := p.hookWhy
	if p.hook != steer.XDP || ps.noCache != nil {
		return why
	}
	if p.steersOnly {
		why += "; packets that arrive here take the packet loop, which gets them by zero copy"
	}
	if !p.noTarget {
		return why
	}
	why += "; packets that leave here take the packet loop, as XDP cannot redirect to it: "
	switch {
	case p.unknown:
		return why + "the kernel does not say whether the driver can (Linux 6.3 says it)"
	case p.fewQueues:
		return why + "it has fewer queues than the node has CPUs, and its driver loses packets on the others (ethtool -L)"
	case p.driver == veth:
		return why + "its peer has neither GRO nor XDP"
	}
	return why + "the driver cannot"
}

// anyTCX reports whether a device has hook TCX.
func (ps *Ports) anyTCX() bool {
	return slices.ContainsFunc(ps.list, func(p *port) bool {
		return !p.host && !p.isVLAN() && p.state <= joining && p.hook == steer.TCX
	})
}

// AnyXDP reports whether a device has hook XDP.
func (ps *Ports) AnyXDP() bool {
	return slices.ContainsFunc(ps.list, func(p *port) bool { return !p.isVLAN() && p.hook == steer.XDP })
}

// openPair makes the veth pair of a device with hook TCX, and binds a socket to each of the
// pair's queues, to receive. Packets leave by sockets of the device itself.
func (ps *Ports) openPair(id int, p *port) (err error) {
	queues := min(p.queues, ps.workers)
	if p.pair, err = uppair.Open(uppair.Config{Slot: id, Queues: queues, MTU: p.mtu}); err != nil {
		return err
	}
	for q := range queues {
		s, err := ps.openSocket(xsk.Config{
			IfIndex: p.pair.Inner, Queue: q, Mode: xsk.Copy, Umem: ps.umem(p),
			MultiBuffer: p.mtu > largestMTU(ps.memory.FrameSize()) && ps.program.Frags(),
		})
		if err != nil {
			return fmt.Errorf("%s queue %d: %w", p.pair.Name, q, err)
		}
		p.inner = append(p.inner, s)
	}
	return nil
}

// receiving are the sockets that a port's packets arrive at.
func (p *port) receiving() []*xsk.Socket {
	if p.hook == steer.TCX {
		return p.inner
	}
	return p.sockets
}

// innerIndex is the index of the inner end of a port's veth pair, 0 without one.
func (p *port) innerIndex() int {
	if p.pair == nil {
		return 0
	}
	return p.pair.Inner
}

// all are all sockets of a port.
func (p *port) all() []*xsk.Socket { return slices.Concat(p.inner, p.sockets) }

// Device is a port of the program in the kernel that forwards by the flow table.
type Device struct {
	ID      int
	IfIndex int // 0 while no packet may leave by it
	// Tag is of a VLAN, whose packets leave by IfIndex with it: EtherType and number.
	Tag uint32
	// Up is the interface by which a TCX program sends packets up, 0 without one.
	Up int
	// XDP and XDPFrag report whether an XDP program may redirect packets to it, and those
	// of several buffers.
	XDP, XDPFrag bool
}

// Forwarding lists the devices for the program in the kernel.
func (ps *Ports) Forwarding() (list []Device) {
	for id, p := range ps.list {
		if p.state > joining {
			continue
		}
		under := ps.deviceOf(p)
		d := Device{ID: id, Tag: p.tag}
		if p.pair != nil {
			d.Up = p.pair.Outer
		}
		if under.attachment != nil && p.active {
			d.IfIndex = under.index
		}
		f, err := xsk.DeviceFeatures(under.index)
		if p.unknown = err != nil; !p.unknown {
			d.XDP, d.XDPFrag = f.Redirect(), f.RedirectMultiBuffer()
		}
		if p.fewQueues = d.XDP && !sendsFromEachCPU(under); p.fewQueues {
			d.XDP, d.XDPFrag = false, false
		}
		p.noTarget = !d.XDP
		list = append(list, d)
	}
	return list
}
