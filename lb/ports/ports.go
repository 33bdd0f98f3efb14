// Package ports attaches Weir to interfaces of the host, and keeps it attached while
// they go, come back and change.
//
//	config.go    what is asked for
//	driver.go    drivers of NICs and kinds of links
//	port.go      a port; lost.go counts the packets that the kernel loses behind it
//	view.go      the host's interfaces at one moment
//	list.go      the ports by ID
//	resolve.go   which devices and VLANs the configured interfaces are
//	sockets.go   a socket per queue that a worker owns
//	attach.go    the steering program; hook.go: where it takes packets; guard.go: before it is there
//	life.go      each port that goes or comes advances by a state; refused.go
//	ports.go     all of that in order
//	absent.go    interfaces without a port are noted
//	follow.go    at intervals, and when links or routes change: what goes, comes and changes
//	update.go    the ports for workers and the program; arrival.go for traces, status.go for operators
//
// Package offload keeps the offloads that are switched off, package absence the interfaces by
// which no traffic comes.
//
// A port is a device with queues, a VLAN upon a device, or the host veth. Its ID is its
// number in the steering program, the routes and the workers.
//
// Ports waits for no worker. Follow returns the ports that the workers must take over,
// and advances no port before they have done so.
package ports

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"

	"github.com/weirlb/weir/lb/ports/absence"
	"github.com/weirlb/weir/lb/ports/offload"
	"github.com/weirlb/weir/lb/route"
	"github.com/weirlb/weir/lb/steer"
	"github.com/weirlb/weir/lb/uppair"
	"github.com/weirlb/weir/lb/warning"
	"github.com/weirlb/weir/lb/xsk"
)

// Ports is the ports of a load balancer. Calls must not overlap, but for Absent.
type Ports struct {
	list     *portList
	resolver *resolver
	opener   *opener
	steering *steering
	life     *lifecycle
	absent   *absence.Record
	attached bool
	warnings *warning.List
	log      *slog.Logger
}

// New returns the ports of the configured interfaces. None is opened yet.
func New(cfg Config) (*Ports, error) {
	ps := newPorts(cfg)
	var err error
	if ps.steering.offloads, err = offload.Open(cfg.StateDir); err != nil {
		ps.warnings.Add(warning.PacketPath, "", "%v", err)
	}
	if err := ps.resolver.resolveAll(); err != nil {
		return nil, errors.Join(err, ps.steering.offloads.Restore())
	}
	return ps, nil
}

// newPorts returns the parts of Ports, without a port.
func newPorts(cfg Config) *Ports {
	warnings, log := cfg.Warnings, cfg.Log
	var names []string
	for _, in := range cfg.Interfaces {
		names = append(names, in.Name)
	}
	list := &portList{}
	resolver := &resolver{interfaces: cfg.Interfaces, declaredLinks: cfg.Testing.DeclaredLinks, list: list}
	opener := &opener{
		frameSize: cfg.FrameSize, testing: cfg.Testing, queueCount: map[string]int{}, warnings: warnings, log: log,
	}
	steering := &steering{
		pinDir: cfg.PinDir, list: list, guarded: map[int]bool{}, warnings: warnings, log: log,
	}
	return &Ports{
		list: list, resolver: resolver, opener: opener, steering: steering,
		life: &lifecycle{
			list: list, resolver: resolver, opener: opener, steering: steering,
			refused: refusals{}, warnings: warnings, log: log,
		},
		absent: absence.New(names, warnings), warnings: warnings, log: log,
	}
}

// Host is the host veth as a port.
type Host struct {
	Name   string
	Index  int
	MAC    [6]byte
	MTU    int
	Queues int
	// Fault is why the host veth loses packets, "" if it loses none.
	Fault func() string
}

// ErrAttach is wrapped by the error of an Attach that could not attach to an interface:
// nothing is balanced there, and trying again does not help.
var ErrAttach = errors.New("attach")

// AddHost adds the host veth, which is the last port.
func (ps *Ports) AddHost(h Host) {
	ps.list.ports = append(ps.list.ports, &port{
		name: h.Name, index: h.Index, mode: ModeNative, mac: h.MAC, mtu: h.MTU, queues: h.Queues,
		host: true, driver: veth, vlanParent: -1, active: true, keep: h.Fault,
	})
}

// SetWorkers sets the number of workers, and warns of queues that none owns.
func (ps *Ports) SetWorkers(n int) {
	ps.opener.workers = n
	for _, p := range ps.list.ports {
		ps.opener.warnQueues(p)
	}
}

// SetFlowCache says why the kernel forwards no established flows, nil if it does. Only
// then a hook other than xdp makes sense.
func (ps *Ports) SetFlowCache(err error) { ps.steering.noCache = err }

// FrameSize is the size of the frames that the packet memory must have, and why it is
// not the smallest.
//
// Frames are large where a packet does not fit into a small frame, and where zero copy
// may be granted. Intel's drivers tell the NIC the size of a receive buffer in units of
// 1,024 bytes (SRRCTL.BSIZEPKT in igb, igc and ixgbe). Of a frame of 2,048 bytes there
// remain 1,792 behind the headroom, so that the NIC splits each packet of more than
// 1,024 bytes, and igb passes on the pieces as packets. Small frames are for veth and
// copy mode, where a packet is cheaper with them.
func (ps *Ports) FrameSize() (size int, why string) {
	if ps.opener.frameSize != 0 {
		return ps.opener.frameSize, "it is configured"
	}
	for _, p := range ps.list.ports {
		if p.mtu > largestMTU(xsk.SmallFrameSize) {
			return xsk.FrameSize, fmt.Sprintf("the MTU of %s is %d", p.name, p.mtu)
		}
	}
	for _, p := range ps.list.ports {
		if p.mayZeroCopy() {
			return xsk.FrameSize, fmt.Sprintf("%s may run with zero copy, where some NICs "+
				"split packets of more than 1,024 bytes if frames are smaller", p.name)
		}
	}
	return xsk.SmallFrameSize, ""
}

// MaxDevices is the number of devices that the packet memory must be made for: those
// that there are, and spare ones for bonds.
func (ps *Ports) MaxDevices() int {
	n := ps.list.devices()
	if ps.resolver.bonded {
		n += SpareMembers
	}
	return n
}

// Open binds a socket to every queue that a worker owns. Sockets of the last process that
// serve as such take their place, and the others are closed. The ports keep program and
// memory, which has frames for MaxDevices of FrameSize. Preconditions: SetWorkers.
func (ps *Ports) Open(program *steer.Program, memory *xsk.Umem, last []*xsk.Socket) error {
	ps.opener.program, ps.opener.memory, ps.opener.last = program, memory, last
	ps.steering.program, ps.steering.frameSize = program, memory.FrameSize()
	ps.life.maxDevices = ps.MaxDevices()
	defer ps.opener.closeLast()
	for id, p := range ps.list.ports {
		if p.isVLAN() {
			continue
		}
		if err := ps.life.openQueues(id, p); err != nil {
			return err
		}
	}
	return nil
}

// Attach puts the steering program on the ports. Preconditions: everything that the
// program leads to is in place, so that it replaces the program of an earlier process
// without a gap.
func (ps *Ports) Attach() error {
	ps.attached = true
	// The host veth, which is the last port, first: answers come by it.
	for id, p := range slices.Backward(ps.list.ports) {
		if p.isVLAN() {
			continue // its device has the program
		}
		if err := ps.steering.attach(id, p); err != nil {
			return fmt.Errorf("%w: interface %s: %w", ErrAttach, p.name, err)
		}
		ps.log.Info("attached", "interface", p.name, "hook", p.hook, "because", p.hookWhy,
			"mode", p.granted(), "adopted", p.attachment.Adopted, "pinned", p.attachment.Pinned)
	}
	ps.steering.releaseOthers()
	return nil
}

// Steer gives the steering program all sockets again, after Unsteer.
func (ps *Ports) Steer() error {
	var errs []error
	for id, p := range ps.list.ports {
		errs = append(errs, ps.steering.steerTo(id, p))
	}
	return errors.Join(errs...)
}

// Unsteer leaves all packets to the kernel, and the sockets open.
func (ps *Ports) Unsteer() error {
	var errs []error
	for id, p := range ps.list.ports {
		for _, s := range p.receiving() {
			errs = append(errs, ps.steering.program.ClearSocket(id, s.Queue()))
		}
	}
	return errors.Join(errs...)
}

// AnyXDP reports whether a device has hook XDP.
func (ps *Ports) AnyXDP() bool {
	return slices.ContainsFunc(ps.list.ports, func(p *port) bool { return !p.isVLAN() && p.hook == steer.XDP })
}

// MTU is the largest MTU of the ports, in bytes, at least 1500.
func (ps *Ports) MTU() int {
	mtu := 1500
	for _, p := range ps.list.ports {
		mtu = max(mtu, p.mtu)
	}
	return mtu
}

// Queues is the number of receive queues of each port, by the name of the port's
// interface.
func (ps *Ports) Queues() map[string]int {
	queues := map[string]int{}
	for _, p := range ps.list.ports {
		queues[p.name] += p.queues
	}
	return queues
}

// Name is the name of a port's interface, "" without such a port.
func (ps *Ports) Name(id int) string {
	if id < 0 || id >= len(ps.list.ports) {
		return ""
	}
	return ps.list.ports[id].name
}

// Len is the number of port IDs in use.
func (ps *Ports) Len() int { return len(ps.list.ports) }

// Devices is the number of ports with queues of their own: VLANs have none.
func (ps *Ports) Devices() int { return ps.list.devices() }

// HostID is the ID of the host veth, -1 without one.
func (ps *Ports) HostID() int { return ps.list.hostID() }

// Moving reports whether a port is between two states, so that Follow should run again
// soon.
func (ps *Ports) Moving() bool { return ps.list.moving() }

// Refused lists a warning for every member of a bond that could not be attached.
func (ps *Ports) Refused() []warning.Warning { return ps.life.refused.members() }

// Routed lists the ports by which routes may lead now.
func (ps *Ports) Routed() []route.Interface {
	var list []route.Interface
	for id, p := range ps.list.ports {
		if !p.host && p.routeIndex != 0 && p.active && p.state == open {
			list = append(list, route.Interface{Index: p.routeIndex, Port: id})
		}
	}
	return list
}

// Transfer prepares the packet memory with all sockets in use for the next process.
// Preconditions: no worker runs.
func (ps *Ports) Transfer() (*xsk.Transfer, error) {
	var list []*xsk.Socket
	for _, p := range ps.list.ports {
		if p.state == open {
			list = append(list, p.all()...)
		}
	}
	return ps.opener.memory.Transfer(list)
}

// Close closes the sockets and puts the offloads back. Preconditions: no worker runs,
// and the steering program is detached.
func (ps *Ports) Close() error {
	var errs []error
	for _, p := range ps.list.ports {
		errs = append(errs, p.closeSockets())
	}
	return errors.Join(append(errs, ps.RestoreHost())...)
}

// RestoreHost is Close without the sockets, which end with the process: a worker that does not end
// has them.
func (ps *Ports) RestoreHost() error {
	var errs []error
	for _, p := range ps.list.ports {
		if !p.isVLAN() && p.state != vacant {
			errs = append(errs, ps.steering.offloads.RestoreLink(p.name, p.index))
		}
	}
	// Also pairs of an earlier process, whose interfaces have another hook now.
	return errors.Join(append(errs, uppair.Cleanup(), ps.steering.offloads.Restore())...)
}

// RestoreOffloads puts back the offloads that a process which was killed had switched
// off. stateDir is its Config.StateDir.
func RestoreOffloads(stateDir string) error {
	o, err := offload.Open(stateDir)
	return errors.Join(err, o.Restore())
}
