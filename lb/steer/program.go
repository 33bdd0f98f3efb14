package steer

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/rlimit"
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
	pins       mapPins
	maps       *kernelMaps
	interfaces interfaceTable
	sockets    sockets
	counters   packetCounters
	programs   programs
	links      links

	mu       sync.Mutex
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
	p, err := withMaps(cfg)
	if err != nil {
		return nil, fmt.Errorf("make maps of the steering program: %w%s", err, loadErrorHint(err))
	}
	switch { // Close waits for it
	case cfg.TCX && cfg.Flows != nil:
		go func() { _, _ = p.programs.ingress(); _, _ = p.programs.steer() }()
	case !p.maps.adopted || cfg.Flows != nil:
		go p.programs.xdp()
	default: // the program that is attached serves: connections wait for no other
	}
	return p, nil
}

// withMaps makes a Program with maps, of which no program is loaded.
func withMaps(cfg Config) (*Program, error) {
	pins := mapPins{cfg.PinDir}
	m, err := openMaps(cfg, pins)
	if err != nil {
		return nil, err
	}
	p := &Program{
		pins: pins, maps: m,
		interfaces: interfaceTable{m.steer.Interfaces, m.steer.Vlans, &m.own},
		sockets:    sockets{redirect: m.steer.Sockets, held: m.steer.HeldQueues},
		counters:   packetCounters{m.steer.PacketCounters},
		programs:   programs{maps: m, flows: cfg.Flows},
	}
	p.links = links{&p.programs}
	if !m.adopted {
		return p, nil
	}
	if err := errors.Join(p.sockets.adopt(), p.counters.reset()); err != nil {
		return nil, errors.Join(fmt.Errorf("maps of the last process: %w", err), m.close())
	}
	return p, nil
}

// Adopted reports whether the maps are those of an earlier process: its program, if it is
// still attached, serves the sockets of this one.
func (p *Program) Adopted() bool { return p.maps.adopted }

// Ready waits until the program for the XDP hook is loaded, and returns the error of that.
func (p *Program) Ready() error {
	_, err := p.programs.xdp()
	return err
}

// Repeats is nil if the XDP program forwards by the flow table, and else says why not. It
// waits until the program is loaded.
func (p *Program) Repeats() error { return p.programs.repeats() }

// ByFlow is nil if the program on every attached interface asks the flow table of this process
// whether a packet to an SNAT address is of a flow, and else says why not. It is called when all
// interfaces are attached.
func (p *Program) ByFlow() error { return p.programs.byFlow() }

// Steers waits until the program is loaded for the interfaces that a TCX program redirects to.
func (p *Program) Steers() error {
	_, err := p.programs.steer()
	return err
}

// TCX is nil if interfaces may have the TCX hook, and else says why not.
func (p *Program) TCX() error { return p.programs.tcx() }

// Frags reports whether the program may see packets of several buffers, that is whether
// interfaces with an MTU above a buffer (about 3500 bytes) can be
// attached natively. It waits until the program is loaded.
func (p *Program) Frags() bool { return p.programs.frags() }

// SetSocket makes packets of a queue go to the AF_XDP socket fd. The entry
// goes by itself when the socket is closed.
func (p *Program) SetSocket(slot, queue, fd int) error { return p.sockets.set(slot, queue, fd) }

// SetSockets is SetSocket for the first queues of a slot, by queue: for all or, after an
// error, for none.
func (p *Program) SetSockets(slot int, fds []int) error { return p.sockets.setAll(slot, fds) }

// ClearSocket makes packets of a queue go to the kernel. A queue without a
// socket is not an error.
func (p *Program) ClearSocket(slot, queue int) error { return p.sockets.clear(slot, queue) }

// Settle removes from adopted maps what this process has not put there, and pins the maps for
// the next process. It is called when all that is to be served is there, and attached.
func (p *Program) Settle() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.maps.adopted {
		return p.pins.pin(p.maps.byName())
	}
	first, err := p.maps.prune()
	if !first {
		return err
	}
	return errors.Join(err, p.sockets.settle())
}

// Close releases the program. With remove it is detached everywhere, and the
// pinned links are removed; without, pinned links stay, those of guards too, as after a crash,
// and the next start adopts them. Links that could not be pinned end either way.
func (p *Program) Close(remove bool) error {
	p.mu.Lock()
	attached, guarded := slices.Clone(p.attached), slices.Collect(maps.Keys(p.guards))
	var errs []error
	if remove && (p.slots > 0 || p.sockets.everTook()) {
		errs = append(errs, p.pins.remove()) // first: the directory goes with the last link
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
	return errors.Join(append(errs, p.programs.close(), p.maps.close())...)
}
