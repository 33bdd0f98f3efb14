package steer

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"
)

const (
	// MaxSlots is the number of interfaces that a Program can serve.
	MaxSlots = 64
	// MaxQueues is the number of queues per interface that can have a socket;
	// packets of further queues go to the kernel.
	MaxQueues = 64

	// DefaultPinDir is where links are pinned unless told otherwise.
	DefaultPinDir = "/sys/fs/bpf/weir"

	// DefaultMaxFrontends is the number of frontends that there is room for, unless told otherwise.
	DefaultMaxFrontends = 65536
	defaultMaxSNAT      = 1024

	interfaceAll   = 1 // INTERFACE_ALL in bpf/maps.h
	interfaceVLANs = 2 // INTERFACE_VLANS
)

// Config sizes the maps of a Program.
type Config struct {
	MaxFrontends int // addresses x ports x protocols; 0 = 65536
	MaxSNAT      int // translated addresses; 0 = 1024
	// Flows are the maps of lb/flowcache. Unless nil the XDP program forwards by the flow
	// table (Linux 5.12), and TCX can be had. The Program does not close them.
	Flows map[string]*ebpf.Map
	// PinDir is the directory of pins in which maps of an earlier process are looked for, and
	// in which Settle pins them; "" for neither.
	PinDir string
	// TCX says that interfaces will have that hook, so that its program is loaded early.
	TCX bool
}

// Program is the steering program in the kernel, with all maps.
type Program struct {
	maps     steerMaps
	data     *ebpf.Map // until
	until    *ebpf.Variable
	programs programs
	config   Config
	adopted  adopted

	mu       sync.Mutex
	queues   [MaxSlots]uint64    // guarded by mu; those with a socket, see hold.go
	own      [MaxSlots]uint64    // guarded by mu; as queues, without those of an earlier process
	took     bool                // guarded by mu; packets are taken, or were
	attached []*Attachment       // guarded by mu
	slots    int                 // guarded by mu; those from here on have never been attached
	guards   map[int]*Attachment // guarded by mu; see Guard, by interface index
}

// Load makes the maps, and begins to load the program for XDP: an error of that is returned
// by the first attachment. Needs CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN, or root.
func Load(cfg Config) (*Program, error) {
	if cfg.MaxFrontends == 0 {
		cfg.MaxFrontends = DefaultMaxFrontends
	}
	if cfg.MaxSNAT == 0 {
		cfg.MaxSNAT = defaultMaxSNAT
	}
	if cfg.MaxFrontends < 0 || cfg.MaxSNAT < 0 {
		return nil, fmt.Errorf("load steering program: negative map size %d, %d", cfg.MaxFrontends, cfg.MaxSNAT)
	}
	// Matters before kernel 5.11 only, and shows in the load when it fails.
	_ = rlimit.RemoveMemlock()
	p := &Program{config: cfg}
	if err := p.makeMaps(); err != nil {
		return nil, fmt.Errorf("make maps of the steering program: %w%s", err, loadErrorHint(err))
	}
	switch { // Close waits for it
	case cfg.TCX && cfg.Flows != nil:
		go func() { _, _ = p.ingress(); _, _ = p.steer() }()
	case !p.adopted.maps || cfg.Flows != nil:
		go p.xdp()
	default: // the program that is attached serves: connections wait for no other
	}
	return p, nil
}

// makeMaps makes the maps that the programs share.
func (p *Program) makeMaps() error {
	spec, err := loadSteer()
	if err != nil {
		return err
	}
	p.sizeMaps(spec)
	var all struct {
		steerMaps
		steerVariables
		Data *ebpf.Map `ebpf:".bss"`
	}
	last := p.adopt(spec)
	defer closeMaps(last)
	err = spec.LoadAndAssign(&all, &ebpf.CollectionOptions{MapReplacements: last})
	if last != nil && err != nil { // of another shape
		last = nil
		err = spec.LoadAndAssign(&all, nil)
	}
	p.maps, p.data, p.until = all.steerMaps, all.Data, all.Until
	if err != nil || last == nil {
		return err
	}
	p.adopted.maps, p.adopted.put = true, map[any]bool{}
	return p.takeMaps()
}

func (p *Program) sizeMaps(spec *ebpf.CollectionSpec) {
	spec.Maps[steerMapFrontends].MaxEntries = uint32(p.config.MaxFrontends)
	spec.Maps[steerMapSnat].MaxEntries = uint32(p.config.MaxSNAT)
	spec.Maps[steerMapVips].MaxEntries = uint32(p.config.MaxFrontends)
}

// steerSpec is the spec of the steering program, over the maps that are made.
func (p *Program) steerSpec() (*ebpf.CollectionSpec, map[string]*ebpf.Map, error) {
	spec, err := loadSteer()
	if err != nil {
		return nil, nil, err
	}
	p.sizeMaps(spec)
	return spec, p.sharedMaps(), nil
}

// sharedMaps are the maps by their names in the programs.
func (p *Program) sharedMaps() map[string]*ebpf.Map {
	return map[string]*ebpf.Map{
		steerMapFragmented: p.maps.Fragmented, steerMapFrontends: p.maps.Frontends,
		steerMapInterfaces: p.maps.Interfaces, steerMapPacketCounters: p.maps.PacketCounters,
		steerMapSnat: p.maps.Snat, steerMapSockets: p.maps.Sockets,
		steerMapVips: p.maps.Vips, steerMapVlans: p.maps.Vlans,
		steerMapHeldQueues: p.maps.HeldQueues, ".bss": p.data,
	}
}

func loadErrorHint(err error) string {
	if errors.Is(err, unix.EPERM) {
		return " (needs CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN, or root)"
	}
	return ""
}

// SetSocket makes packets of a queue go to the AF_XDP socket fd. The entry
// goes by itself when the socket is closed.
func (p *Program) SetSocket(slot, queue, fd int) error {
	if err := checkSlot(slot, queue); err != nil {
		return err
	}
	if err := p.maps.Sockets.Put(uint32(slot*MaxQueues+queue), uint32(fd)); err != nil {
		return fmt.Errorf("set socket of slot %d queue %d: %w", slot, queue, err)
	}
	return p.noteSocket(slot, queue, true)
}

// SetSockets is SetSocket for the first queues of a slot, by queue: for all or, after an
// error, for none.
func (p *Program) SetSockets(slot int, fds []int) error {
	for queue, fd := range fds {
		if err := p.SetSocket(slot, queue, fd); err != nil {
			for q := range queue + 1 {
				err = errors.Join(err, p.ClearSocket(slot, q))
			}
			return err
		}
	}
	return nil
}

// ClearSocket makes packets of a queue go to the kernel. A queue without a
// socket is not an error.
func (p *Program) ClearSocket(slot, queue int) error {
	if err := checkSlot(slot, queue); err != nil {
		return err
	}
	if err := p.noteSocket(slot, queue, false); err != nil {
		return err
	}
	err := p.maps.Sockets.Delete(uint32(slot*MaxQueues + queue))
	if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("clear socket of slot %d queue %d: %w", slot, queue, err)
	}
	return nil
}

func checkSlot(slot, queue int) error {
	if slot < 0 || slot >= MaxSlots || queue < 0 || queue >= MaxQueues {
		return fmt.Errorf("slot %d queue %d: at most %d interfaces of %d queues each", slot, queue, MaxSlots, MaxQueues)
	}
	return nil
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

// setVLANs brings the VLANs of an interface from old to want.
func (p *Program) setVLANs(ifindex int, old, want map[VLAN]net.HardwareAddr) error {
	var errs []error
	for id, mac := range want {
		if len(mac) != 6 {
			errs = append(errs, fmt.Errorf("VLAN %d of interface %d: %q is not an Ethernet address", id.Number(), ifindex, mac))
			continue
		}
		k, v := steerVlanKey{Ifindex: uint32(ifindex), Vlan: uint32(id)}, steerVlan{Mac: [6]uint8(mac)}
		if err := p.maps.Vlans.Put(k, v); err != nil {
			errs = append(errs, fmt.Errorf("set VLAN %d of interface %d: %w", id.Number(), ifindex, err))
		}
		p.adopted.note(k)
	}
	for id := range old {
		if _, ok := want[id]; ok {
			continue
		}
		err := p.maps.Vlans.Delete(steerVlanKey{Ifindex: uint32(ifindex), Vlan: uint32(id)})
		if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			errs = append(errs, fmt.Errorf("remove VLAN %d of interface %d: %w", id.Number(), ifindex, err))
		}
	}
	return errors.Join(errs...)
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
		if a.Hook == TCX && vlans != nil {
			return fmt.Errorf("set VLANs of interface %d: %w: does not know VLANs", ifindex, ErrTCX)
		}
		old := a.vlans
		a.vlans = vlans
		if (old == nil) == (vlans == nil) {
			return p.setVLANs(ifindex, old, vlans)
		}
		// The program looks up the VLANs only with the flag set.
		return errors.Join(p.setVLANs(ifindex, old, vlans), p.announce(a.asked()))
	}
	return fmt.Errorf("set VLANs of interface %d: not attached", ifindex)
}

// asked is the interface as it was asked for, with its present address and VLANs.
func (a *Attachment) asked() Interface {
	return Interface{
		Index: a.IfIndex, Slot: a.Slot, Hook: a.Hook, Inner: a.innerIndex(),
		All: a.all, MAC: a.mac, VLANs: a.vlans,
	}
}

// announce adds an interface, and the inner end of its veth pair, to the program's maps.
func (p *Program) announce(in Interface) error {
	f := flags(in.All, in.VLANs)
	if in.Hook == TCX {
		if err := p.setInterface(in.Inner, in.Slot, in.MAC, f); err != nil {
			return err
		}
	}
	return p.setInterface(in.Index, in.Slot, in.MAC, f)
}

// setInterface tells the program of an interface. Until then it passes every
// packet of it.
func (p *Program) setInterface(ifindex, slot int, mac net.HardwareAddr, flags uint32) error {
	if len(mac) != 6 {
		return fmt.Errorf("interface %d: %q is not an Ethernet address", ifindex, mac)
	}
	value := steerInterface{Slot: uint16(slot), Mac: [6]uint8(mac), Flags: flags}
	if err := p.maps.Interfaces.Put(uint32(ifindex), value); err != nil {
		return fmt.Errorf("set interface %d: %w", ifindex, err)
	}
	p.adopted.note(uint32(ifindex))
	return nil
}

// removeInterface takes an interface and, if it is not 0, the inner end of its veth pair
// from the program.
func (p *Program) removeInterface(ifindex, inner int) error {
	err := p.maps.Interfaces.Delete(uint32(ifindex))
	if inner != 0 {
		err = errors.Join(err, p.maps.Interfaces.Delete(uint32(inner)))
	}
	return err
}

// SetMAC changes the destination address of the packets that are looked at,
// after the interface's own has changed.
func (p *Program) SetMAC(ifindex int, mac net.HardwareAddr) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, a := range p.attached {
		if a.IfIndex == ifindex {
			a.mac = mac
			return p.announce(a.asked())
		}
	}
	return fmt.Errorf("set address of interface %d: not attached", ifindex)
}

// Close releases the program. With remove it is detached everywhere, and the
// pinned links are removed; without, pinned links stay, those of guards too, as after a crash,
// and the next start adopts them. Links that could not be pinned end either way.
func (p *Program) Close(remove bool) error {
	p.mu.Lock()
	attached, guarded := slices.Clone(p.attached), slices.Collect(maps.Keys(p.guards))
	var errs []error
	if remove && p.took {
		errs = append(errs, p.removeMaps()) // first: the directory goes with the last link
	}
	p.mu.Unlock()
	for _, index := range guarded {
		if remove {
			errs = append(errs, p.Unguard(index))
		} else {
			p.mu.Lock()
			p.releaseGuard(index)
			p.mu.Unlock()
		}
	}
	for _, a := range attached {
		errs = append(errs, p.release(a, remove))
	}
	return errors.Join(append(errs, p.programs.close(), p.data.Close(), p.maps.Close())...)
}
