package steer

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// programs are the programs over the maps of a Program. The kernel's verifier takes 0.05 to
// 0.5 s for each, while connections wait for a restart. So a program is loaded when it is
// first needed, and that of the XDP hook from the beginning, beside the rest of the start.
type programs struct {
	steer   lazyProgram // weir_steer
	repeat  lazyProgram // weir_repeat
	ingress lazyProgram // weir_ingress
	noFrags atomic.Bool // XDP programs do without packets of several buffers
}

// lazyProgram is a program that the first call of get loads.
type lazyProgram struct {
	once sync.Once
	prog *ebpf.Program
	err  error
}

func (l *lazyProgram) get(load func() (*ebpf.Program, error)) (*ebpf.Program, error) {
	l.once.Do(func() { l.prog, l.err = load() })
	return l.prog, l.err
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
	return errors.Join(ps.steer.close(), ps.repeat.close(), ps.ingress.close())
}

// xdp returns the program for the XDP hook. Where the kernel cannot load the program that
// forwards by the flow table, that is the program without it.
func (p *Program) xdp() (*ebpf.Program, error) {
	if p.config.Flows != nil {
		if prog, err := p.programs.repeat.get(p.loadRepeat); err == nil {
			return prog, nil
		}
	}
	return p.steer()
}

// Ready waits until the program for the XDP hook is loaded, and returns the error of that.
func (p *Program) Ready() error {
	_, err := p.xdp()
	return err
}

// Repeats is nil if the XDP program forwards by the flow table, and else says why not. It
// waits until the program is loaded.
func (p *Program) Repeats() error {
	if p.config.Flows == nil {
		return errNoFlows
	}
	_, err := p.programs.repeat.get(p.loadRepeat)
	return err
}

var errNoFlows = errors.New("the flow table is not in maps")

// steer returns the steering program.
func (p *Program) steer() (*ebpf.Program, error) { return p.programs.steer.get(p.loadSteer) }

// ingress returns the program for the TCX hook (Linux 6.6).
func (p *Program) ingress() (*ebpf.Program, error) {
	return p.programs.ingress.get(func() (*ebpf.Program, error) {
		if p.config.Flows == nil {
			return nil, fmt.Errorf("load TCX program: %w", errNoFlows)
		}
		return p.loadIngress(knowsIPv6Sums())
	})
}

// Frags reports whether the program may see packets of several buffers, that is whether
// interfaces with an MTU above a buffer (about 3500 bytes) can be
// attached natively. It waits until the program is loaded.
func (p *Program) Frags() bool {
	_, err := p.xdp()
	return err == nil && !p.programs.noFrags.Load()
}

// loadSteer loads the steering program.
func (p *Program) loadSteer() (*ebpf.Program, error) {
	prog, err := p.withFrags(func(frags bool) (*ebpf.Program, error) {
		spec, shared, err := p.steerSpec()
		if err != nil {
			return nil, err
		}
		if !frags {
			spec.Programs[steerProgWeirSteer].Flags &^= unix.BPF_F_XDP_HAS_FRAGS
		}
		var programs steerPrograms
		err = spec.LoadAndAssign(&programs, &ebpf.CollectionOptions{MapReplacements: shared})
		return programs.WeirSteer, err
	})
	if err != nil {
		return nil, fmt.Errorf("load steering program: %w%s", err, loadErrorHint(err))
	}
	return prog, nil
}

// withFrags loads an XDP program for packets of several buffers, and without them on kernels
// before 5.18, where the MTU is limited.
func (p *Program) withFrags(load func(frags bool) (*ebpf.Program, error)) (*ebpf.Program, error) {
	if !p.programs.noFrags.Load() {
		prog, err := load(true)
		if err == nil || errors.Is(err, unix.EPERM) {
			return prog, err
		}
		if prog, without := load(false); without == nil {
			p.programs.noFrags.Store(true)
			return prog, nil
		}
		return nil, err
	}
	return load(false)
}
