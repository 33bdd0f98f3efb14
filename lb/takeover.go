package lb

import (
	"fmt"
	"maps"

	"github.com/weirlb/weir/lb/ports"
	"github.com/weirlb/weir/lb/xsk"
)

// takeOver has the last process leave, after the kernel has verified the programs over the maps
// that this process will serve by: meanwhile connections would wait.
func (l *LB) takeOver() (sockets *xsk.Transfer, err error) {
	l.beside = true // its maps are not to be changed
	if err := l.loadBeside(); err != nil {
		return nil, err
	}
	l.cfg.Phases.End("program beside the last process")
	if sockets, err = l.cfg.Take(); err != nil {
		return nil, err
	}
	l.beside = false
	if err := l.claimNode(); err != nil {
		return sockets, err
	}
	if l.cache != nil {
		if err := l.cache.Lock(); err != nil {
			l.warnNoCache(err)
			err = l.cache.Close()
			l.cache = nil
			if err != nil {
				return sockets, err
			}
		}
	}
	if l.steer != nil {
		return sockets, l.steer.TakeMaps()
	}
	return sockets, nil
}

// loadBeside loads the programs that the interfaces need. Where the flow table is to be
// another, their maps are not there yet, and the program without it is verified for now.
func (l *LB) loadBeside() error {
	if l.cache != nil {
		ready, err := l.cache.Prepare(l.cfg.MaxFlows)
		if err != nil {
			l.log.Debug("flow cache", "err", err) // Open shows it
		}
		if !ready {
			return Verify()
		}
	}
	if err := l.loadSteering(true); err != nil {
		return err
	}
	l.loaded = l.flowMaps()
	xdp, tcx := false, false
	for _, i := range l.cfg.Interfaces {
		xdp = xdp || i.Hook != ports.HookTCX
		tcx = tcx || l.cache != nil && (i.Hook == ports.HookTCX || i.Hook == ports.HookAuto)
	}
	if tcx && l.steer.TCX() == nil { // the choice of the hooks shows an error
		if err := l.steer.Steers(); err != nil {
			return err
		}
	} else {
		xdp = true
	}
	if xdp {
		return l.steer.Ready()
	}
	return nil
}

// loadOverTable loads the steering program, unless it is loaded over the maps of the flow table.
func (l *LB) loadOverTable() error {
	if l.steer != nil && maps.Equal(l.loaded, l.flowMaps()) {
		return nil
	}
	if l.steer != nil {
		last := l.steer
		l.steer = nil
		if err := last.Close(false); err != nil {
			return fmt.Errorf("steering program: %w", err)
		}
	}
	return l.loadSteering(false)
}
