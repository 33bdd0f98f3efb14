package ports

import (
	"errors"
	"log/slog"
	"net"
	"os"
	"slices"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/weirlb/weir/lb/steer"
	"github.com/weirlb/weir/lb/uppair"
	"github.com/weirlb/weir/lb/xsk"
)

// port is a port. Of a device that only carries VLANs routeIndex is 0; of a VLAN there
// are no sockets and no attachment.
type port struct {
	name       string
	index      int
	mode       string // asked for
	txChecksum string // asked for
	zeroCopy   bool   // the driver may have zero copy
	mac        [6]byte
	mtu        int
	openedMTU  int // when its sockets were opened
	queues     int
	found      int           // receive queues at the last look, 0 before it
	driver     string        // of a NIC, else the kind of link
	host       bool          // it is the host veth
	sockets    []*xsk.Socket // by queue, of the queues that a worker owns
	hookAsked  string
	hook       steer.Hook    // granted
	hookWhy    string        // why
	noTarget   bool          // XDP programs cannot redirect packets to it
	fewQueues  bool          // because it loses those of CPUs without a queue
	unknown    bool          // or because the kernel does not say whether they can
	steersOnly bool          // its packets are the packet loop's, see isZeroCopy
	pair       *uppair.Pair  // of hook tcx, by which packets arrive
	inner      []*xsk.Socket // of hook tcx: as sockets, which then only send
	attachment *steer.Attachment

	parent     string // the configured interface that it is, or is a port of
	routeIndex int    // the interface index in routes: its own or its bond's
	active     bool   // packets may be sent by it
	member     bool   // its device is a member of a bond
	bond       int    // the index of that bond
	vlanParent int    // of a VLAN: the ID of its device's port; else -1
	tag        uint32 // of a VLAN: EtherType and number

	state  state
	closed time.Time // when its sockets were closed
	down   bool      // the interface is down, or has no carrier
	// fault is why packets to or from Weir are lost in a veth pair of Weir's own, "" if none are.
	fault string
	keep  func() (fault string) // of the host veth
	lost  losses

	carrierChanges uint32 // before the driver was given the program, see keepProgram
}

// state is a port's stage of life. Interfaces come and go while packets are on their
// way: a port advances by one state at a time, and only after the workers have taken
// over the last update.
type state uint8

const (
	// open: the steering program is attached, and routes may lead to the port.
	open state = iota
	// joining: the sockets are open, and the workers get the port. They fill its rings
	// before the first packet comes.
	joining
	// leaving: the program is off, and no route leads to the port. The workers send
	// and receive the packets on its rings.
	leaving
	// closing: the workers give up the queues.
	closing
	// closed: the sockets are closed. The kernel gives up their frames.
	closed
	// vacant: the frames are the workers' again, and the ID is the next port's.
	vacant
)

// releaseTime is the time for which the kernel may still use the frames of a closed
// socket: it takes zero copy off a queue in the background.
const releaseTime = time.Second

// isVLAN reports whether the port has no queues: its packets are packets of its
// device, with a tag.
func (p *port) isVLAN() bool { return p.vlanParent >= 0 }

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

// closeSockets closes the sockets of a port, and removes its veth pair.
func (p *port) closeSockets() error {
	var errs []error
	for _, s := range p.all() {
		errs = append(errs, s.Close())
	}
	if p.pair != nil {
		errs = append(errs, p.pair.Close())
	}
	return errors.Join(errs...)
}

// severed reports whether the kernel has taken the steering program or the sockets off the
// device of a port: the former when the device is deleted, the latter also when it moves to
// another network namespace. That distinguishes a new device from an old device of the same
// index.
func (p *port) severed() bool {
	return p.attachment != nil && !p.attachment.Attached() ||
		len(p.sockets) > 0 && p.sockets[0].Unbound() ||
		len(p.inner) > 0 && p.inner[0].Unbound()
}

// queuesNow is the number of receive queues of a device, as it is if the kernel does not say.
func (p *port) queuesNow() int {
	q, err := steer.RxQueues(p.index)
	if err != nil || q.Source == "rtnetlink" {
		return p.queues
	}
	return q.Rx
}

// sendsFromEachCPU reports whether packets that XDP redirects to a device leave, whatever the CPU.
func (p *port) sendsFromEachCPU() bool {
	if !slices.Contains(queuePerCPU, p.driver) {
		return true
	}
	q, err := steer.RxQueues(p.index)
	return err == nil && hasQueuePerCPU(p.driver, q.Rx, os.DirFS("/sys"))
}

// isDown reports whether an interface is down or has no carrier, if its driver says so.
func isDown(a *netlink.LinkAttrs) bool {
	switch a.OperState {
	case netlink.OperDown, netlink.OperLowerLayerDown, netlink.OperNotPresent:
		return true
	}
	return a.Flags&net.FlagUp == 0
}

// keepPath has packets of a port reach Weir by the veth pair that is Weir's own, and says why
// they do not. Another program may have changed the pair.
func (p *port) keepPath(mtu int, log *slog.Logger) (fault string) {
	if p.keep != nil {
		return p.keep()
	}
	if p.pair == nil {
		return ""
	}
	mended, err := p.pair.Keep(mtu)
	switch {
	case err != nil && p.fault == "":
		log.Error("veth pair", "interface", p.name, "err", err)
		fallthrough
	case err != nil:
		return "loses packets: " + err.Error()
	case mended != "":
		log.Warn("veth pair was changed by another program, and is mended", "interface", p.name, "change", mended)
	}
	return ""
}

// isZeroCopy reports whether the packets of a socket's queue are in frames of Weir's. A program that
// redirects such a packet has it copied, of a packet of several buffers the first alone
// (xdp_convert_zc_to_xdp_frame).
func isZeroCopy(s *xsk.Socket) bool {
	zeroCopy, _, _ := s.Granted()
	return zeroCopy
}

// mayZeroCopy reports whether the port may come to run with zero copy.
func (p *port) mayZeroCopy() bool {
	return !p.host && (p.mode == ModeZeroCopy || p.mode == ModeAuto && p.zeroCopy)
}

// mayForget reports whether the driver of a port may forget the program.
func (p *port) mayForget() bool {
	return slices.Contains(forgetful, p.driver) && p.hook == steer.XDP &&
		p.attachment != nil && p.attachment.Mode == steer.Native
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
