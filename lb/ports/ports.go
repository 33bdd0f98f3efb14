// Package ports attaches Weir to interfaces of the host, and keeps it attached while
// they go, come back and change.
//
//	Resolve    which devices and VLANs the configured interfaces are  (resolve.go)
//	Open       a socket per queue that a worker owns                  (sockets.go)
//	Attach     the steering program                                   (attach.go)
//	Follow     once a second, and when routes change:                 (follow.go)
//	             state.go    each port that goes or comes advances by a state
//	             inplace.go  MTU, carrier and queues of devices that stay
//	             forget.go   programs that a driver forgets
//	             change.go   devices, VLANs and bond members are added and removed
//	             absent.go   interfaces without a port are noted
//	Close      sockets closed, offloads put back
//
// A port is a device with queues, a VLAN upon a device, or the host veth. Its ID is its
// number in the steering program, the routes and the workers.
//
// Ports waits for no worker. Follow returns the ports that the workers must take over,
// and advances no port before they have done so.
package ports

import (
	"errors"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"github.com/weirlb/weir/lb/route"
	"github.com/weirlb/weir/lb/steer"
	"github.com/weirlb/weir/lb/uppair"
	"github.com/weirlb/weir/lb/warning"
	"github.com/weirlb/weir/lb/xsk"
)

// Attach modes of an interface, as in the configuration file.
const (
	ModeAuto     = "auto"
	ModeZeroCopy = "zerocopy"
	ModeNative   = "native"
	ModeGeneric  = "generic"
)

// SpareMembers is the number of devices that bonds may get after the start: for so many
// more there are frames, however many bonds there are.
const SpareMembers = 2

// Interface is an interface to attach to.
type Interface struct {
	Name string
	Mode string // "" is auto
	// TxChecksum is TxChecksumAuto or one of the others, "" is auto.
	TxChecksum string
	// Hook is HookAuto or one of the others, "" is xdp.
	Hook string
}

// Config is the configuration of Ports.
type Config struct {
	Interfaces []Interface
	// FrameSize is the size of the frames of the packet memory in bytes, 0: chosen.
	FrameSize int
	// PinDir holds the pinned links of the steering program, StateDir the note of
	// offloads that are switched off.
	PinDir, StateDir string

	Warnings *warning.List
	Log      *slog.Logger
	// Testing is for tests alone.
	Testing Testing
}

// Testing stands for hosts that a test does not run on.
type Testing struct {
	// SoftwareChecksums opens no socket with TX metadata, as on kernels without it: Weir
	// completes all partial checksums, towards the host veth too.
	SoftwareChecksums bool
	// DeclaredLinks is a file with device.Overrides, "" for none: bonds and VLAN
	// interfaces of a kernel that has none.
	DeclaredLinks string
	// OwnHostUmem gives the host veth a umem of its own, as it has beside NICs with zero
	// copy.
	OwnHostUmem bool
}

// Ports is the ports of a load balancer. Calls must not overlap, but for Absent.
type Ports struct {
	cfg      Config
	log      *slog.Logger
	warnings *warning.List
	offloads *offloads

	list    []*port // by ID
	bonded  bool    // some interface is a bond
	workers int

	program    *steer.Program
	memory     *xsk.Umem
	last       []*xsk.Socket // of the last process, until Open has returned
	maxDevices int           // for so many there is packet memory
	noCache    error
	attached   bool

	refused    map[int]refusal    // devices that could not be attached, by index
	guarded    map[int]bool       // devices that a guard was asked for, by index; see guard
	absent     map[string]absence // configured interfaces without a port, by name
	published  atomic.Pointer[Absence]
	queueCount map[string]int // receive queues of a device when it was last attached, by name
}

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

// New returns the ports of the configured interfaces. None is opened yet.
func New(cfg Config) (*Ports, error) {
	ps := &Ports{
		cfg: cfg, log: cfg.Log, warnings: cfg.Warnings,
		refused:    map[int]refusal{},
		guarded:    map[int]bool{},
		absent:     map[string]absence{},
		queueCount: map[string]int{},
	}
	var err error
	if ps.offloads, err = openOffloads(cfg.StateDir); err != nil {
		ps.warnings.Add(warning.PacketPath, "", "%v", err)
	}
	if err := ps.resolveAll(); err != nil {
		return nil, errors.Join(err, ps.offloads.restore())
	}
	return ps, nil
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

// AddHost adds the host veth, which is the last port.
func (ps *Ports) AddHost(h Host) {
	ps.list = append(ps.list, &port{
		name: h.Name, index: h.Index, mode: ModeNative, mac: h.MAC, mtu: h.MTU, queues: h.Queues,
		host: true, driver: veth, vlanParent: -1, active: true, keep: h.Fault,
	})
}

// SetWorkers sets the number of workers, and warns of queues that none owns.
func (ps *Ports) SetWorkers(n int) {
	ps.workers = n
	for _, p := range ps.list {
		ps.warnQueues(p)
	}
}

// warnQueues warns of receive queues without a worker, and of a device that came back
// with another number of queues.
func (ps *Ports) warnQueues(p *port) {
	if p.isVLAN() {
		return
	}
	ps.warnings.Retract(warning.Queues, p.name)
	if had, ok := ps.queueCount[p.name]; ok && had != p.queues {
		ps.warnings.Add(warning.Queues, p.name, "it came back with %d receive queues and had %d: "+
			"workers without one of their own take no packets from it", p.queues, had)
	}
	ps.queueCount[p.name] = p.queues
	if p.queues > ps.workers {
		ps.warnings.Add(warning.Queues, p.name, "%d of its %d receive queues have no worker, their packets go to the kernel: "+
			"run `ethtool -L %s combined %d`", p.queues-ps.workers, p.queues, p.name, ps.workers)
	}
}

// warn warns that a port works with less than it could.
func (ps *Ports) warn(p *port, format string, args ...any) {
	ps.warnings.Add(warning.Interface, p.name, format, args...)
}

// Len is the number of port IDs in use.
func (ps *Ports) Len() int { return len(ps.list) }

// Devices is the number of ports with queues of their own: VLANs have none.
func (ps *Ports) Devices() (n int) {
	for _, p := range ps.list {
		if !p.isVLAN() && p.state != vacant {
			n++
		}
	}
	return n
}

// MTU is the largest MTU of the ports, in bytes, at least 1500.
func (ps *Ports) MTU() int {
	mtu := 1500
	for _, p := range ps.list {
		mtu = max(mtu, p.mtu)
	}
	return mtu
}

// Queues is the number of receive queues of each port, by the name of the port's
// interface.
func (ps *Ports) Queues() map[string]int {
	queues := map[string]int{}
	for _, p := range ps.list {
		queues[p.name] += p.queues
	}
	return queues
}

// HostID is the ID of the host veth, -1 without one.
func (ps *Ports) HostID() int {
	return slices.IndexFunc(ps.list, func(p *port) bool { return p.host })
}

// Name is the name of a port's interface, "" without such a port.
func (ps *Ports) Name(id int) string {
	if id < 0 || id >= len(ps.list) {
		return ""
	}
	return ps.list[id].name
}

// Routed lists the ports by which routes may lead now.
func (ps *Ports) Routed() []route.Interface {
	var list []route.Interface
	for id, p := range ps.list {
		if !p.host && p.routeIndex != 0 && p.active && p.state == open {
			list = append(list, route.Interface{Index: p.routeIndex, Port: id})
		}
	}
	return list
}

// Close closes the sockets and puts the offloads back. Preconditions: no worker runs,
// and the steering program is detached.
func (ps *Ports) Close() error {
	var errs []error
	for _, p := range ps.list {
		errs = append(errs, p.closeSockets())
	}
	return errors.Join(append(errs, ps.RestoreHost())...)
}

// RestoreHost is Close without the sockets, which end with the process: a worker that does not end
// has them.
func (ps *Ports) RestoreHost() error {
	var errs []error
	for _, p := range ps.list {
		if !p.isVLAN() && p.state != vacant {
			errs = append(errs, ps.restoreOffloads(p))
		}
	}
	// Also pairs of an earlier process, whose interfaces have another hook now.
	return errors.Join(append(errs, uppair.Cleanup(), ps.offloads.restore())...)
}

// Transfer prepares the packet memory with all sockets in use for the next process.
// Preconditions: no worker runs.
func (ps *Ports) Transfer() (*xsk.Transfer, error) {
	var list []*xsk.Socket
	for _, p := range ps.list {
		if p.state == open {
			list = append(list, p.all()...)
		}
	}
	return ps.memory.Transfer(list)
}

// RestoreOffloads puts back the offloads that a process which was killed had switched
// off. stateDir is its Config.StateDir.
func RestoreOffloads(stateDir string) error {
	o, err := openOffloads(stateDir)
	return errors.Join(err, o.restore())
}
