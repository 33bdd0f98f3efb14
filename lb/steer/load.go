package steer

import (
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// programs are the programs over the maps of a Program. The kernel's verifier takes 0.05 to
// 0.5 s for each, while connections wait for a restart. So a program is loaded when it is
// first needed, and that of the XDP hook from the beginning, beside the rest of the start.
type programs struct {
	maps  *kernelMaps
	flows map[string]*ebpf.Map // of lb/flowcache, nil without

	steering lazyProgram // weir_steer
	repeat   lazyProgram // weir_repeat
	asking   lazyProgram // weir_repeat that only steers
	tcxProg  lazyProgram // weir_ingress
	noFrags  atomic.Bool // XDP programs do without packets of several buffers
}

// lazyProgram is a program that the first call of get loads.
type lazyProgram struct {
	once   sync.Once
	prog   *ebpf.Program
	err    error
	loaded atomic.Bool // prog and err are set
}

func (l *lazyProgram) get(load func() (*ebpf.Program, error)) (*ebpf.Program, error) {
	l.once.Do(func() {
		l.prog, l.err = load()
		l.loaded.Store(true)
	})
	return l.prog, l.err
}

// failed is the error of a load that has ended.
func (l *lazyProgram) failed() error {
	if !l.loaded.Load() {
		return nil
	}
	return l.err
}

// close waits for a load, and closes the program.
func (l *lazyProgram) close() error {
	l.once.Do(func() { l.err = errors.New("the program is closed") })
	if l.prog == nil {
		return nil
	}
	return l.prog.Close()
}

func (ps *programs) close() error {
	return errors.Join(ps.steering.close(), ps.repeat.close(), ps.asking.close(), ps.tcxProg.close())
}

// xdp returns the program for the XDP hook. Where the kernel cannot load the program that
// forwards by the flow table, that is the program without it.
func (ps *programs) xdp() (*ebpf.Program, error) {
	if ps.flows != nil {
		if prog, err := ps.repeat.get(ps.loadRepeat); err == nil {
			return prog, nil
		}
	}
	return ps.steer()
}

// ask returns the program for the XDP hook that forwards nothing, and looks flows up where it can.
func (ps *programs) ask() (*ebpf.Program, error) {
	if ps.flows != nil {
		if prog, err := ps.asking.get(ps.loadAsking); err == nil {
			return prog, nil
		}
	}
	return ps.steer()
}

// repeats is nil if xdp forwards by the flow table, and else says why not.
func (ps *programs) repeats() error {
	if ps.flows == nil {
		return errNoFlows
	}
	_, err := ps.repeat.get(ps.loadRepeat)
	return err
}

// byFlow is nil if no call of of has returned a program without the flow table in place of another.
func (ps *programs) byFlow() error {
	if ps.flows == nil {
		return errNoFlows
	}
	return errors.Join(ps.repeat.failed(), ps.asking.failed())
}

var errNoFlows = errors.New("the flow table is not in maps")

// steer returns the steering program.
func (ps *programs) steer() (*ebpf.Program, error) { return ps.steering.get(ps.loadSteer) }

// ingress returns the program for the TCX hook (Linux 6.6).
func (ps *programs) ingress() (*ebpf.Program, error) {
	return ps.tcxProg.get(func() (*ebpf.Program, error) {
		if ps.flows == nil {
			return nil, fmt.Errorf("load TCX program: %w", errNoFlows)
		}
		return ps.loadIngress(knowsIPv6Sums())
	})
}

// frags reports whether xdp may see packets of several buffers.
func (ps *programs) frags() bool {
	_, err := ps.xdp()
	return err == nil && !ps.noFrags.Load()
}

// tcx is nil if interfaces may have the TCX hook, and else says why not. A kernel before 6.6
// loads the program too, as of a classifier, and refuses to attach it.
func (ps *programs) tcx() error {
	prog, err := ps.ingress()
	if err != nil {
		return err
	}
	// No interface has this number: a kernel with TCX says so.
	_, err = link.AttachTCX(link.TCXOptions{Interface: math.MaxInt32, Program: prog, Attach: ebpf.AttachTCXIngress})
	if errors.Is(err, ebpf.ErrNotSupported) {
		return err
	}
	return nil
}

// of is the program for an interface.
func (ps *programs) of(in Interface) (*ebpf.Program, error) {
	switch {
	case in.Hook == TCX:
		return ps.ingress()
	case in.Steers && in.All: // what the TCX program has looked up
		return ps.steer()
	case in.Steers:
		return ps.ask()
	}
	return ps.xdp()
}

// loadSteer loads the steering program.
func (ps *programs) loadSteer() (*ebpf.Program, error) {
	prog, err := ps.withFrags(func(frags bool) (*ebpf.Program, error) {
		spec, err := ps.maps.spec()
		if err != nil {
			return nil, err
		}
		if !frags {
			spec.Programs[steerProgWeirSteer].Flags &^= unix.BPF_F_XDP_HAS_FRAGS
		}
		var programs steerPrograms
		err = spec.LoadAndAssign(&programs, &ebpf.CollectionOptions{MapReplacements: ps.maps.byName()})
		return programs.WeirSteer, err
	})
	if err != nil {
		return nil, fmt.Errorf("load steering program: %w%s", err, loadErrorHint(err))
	}
	return prog, nil
}

// withFrags loads an XDP program for packets of several buffers, and without them on kernels
// before 5.18, where the MTU is limited.
func (ps *programs) withFrags(load func(frags bool) (*ebpf.Program, error)) (*ebpf.Program, error) {
	if !ps.noFrags.Load() {
		prog, err := load(true)
		if err == nil || errors.Is(err, unix.EPERM) {
			return prog, err
		}
		if prog, without := load(false); without == nil {
			ps.noFrags.Store(true)
			return prog, nil
		}
		return nil, err
	}
	return load(false)
}
