package lb

import (
	"fmt"
	"maps"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/hostveth"
	"github.com/weirlb/weir/lb/ports"
	"github.com/weirlb/weir/lb/xsk"
)

// prepared is made beside the last process, which serves: connections wait for the rest alone. Of
// what that process may still change, nothing is read before it has left.
type prepared struct {
	host  *hostveth.Prepared
	flows *conntrack.Prepared
}

func (p *prepared) close() error {
	err := p.flows.Close()
	*p = prepared{}
	return err
}

// prepare prepares host veth and flow table. Without it they are opened as after a crash.
func (l *LB) prepare() {
	var err error
	if l.wantsHostVeth() {
		if l.prepared.host, err = hostveth.Prepare(l.hostVethConfig()); err != nil {
			l.log.Info("handover: the host veth of the last process is made anew", "because", err)
		}
	}
	cfg := conntrack.Config{Path: l.cfg.ConntrackPath, MaxFlows: l.cfg.MaxFlows}
	if l.cache != nil { // nil is no Memory
		cfg.Memory = l.cache
	}
	if l.prepared.flows, err = conntrack.Prepare(cfg); err != nil {
		l.log.Info("handover: the flow table is not mapped beforehand", "because", err)
	}
}

// takeOver has the last process leave, after the kernel has verified the programs over the maps
// that this process will serve by, and the rest is prepared: meanwhile connections would wait.
func (l *LB) takeOver() (sockets *xsk.Transfer, err error) {
	l.beside = true // its maps are not to be changed
	if err := l.loadBeside(); err != nil {
		return nil, err
	}
	l.cfg.Phases.End("program beside the last process")
	l.prepare()
	l.cfg.Phases.End("host veth and flow table beside the last process")
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
