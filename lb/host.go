package lb

import (
	"errors"
	"fmt"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/hostveth"
	"github.com/weirlb/weir/lb/ports"
	"github.com/weirlb/weir/lb/route"
	"github.com/weirlb/weir/lb/table"
	"github.com/weirlb/weir/lb/warning"
)

// openHostVeth makes the host veth and counts it as the last interface.
func (l *LB) openHostVeth(workers int) error {
	if !l.cfg.HostVeth4.IsValid() && !l.cfg.HostVeth6.IsValid() {
		l.warnings.Add(warning.PacketPath, "", "no host veth (hostVeth.prefixes is empty): endpoints behind the kernel cannot be reached")
		return nil
	}
	h, err := hostveth.Open(hostveth.Config{
		Prefix4: l.cfg.HostVeth4, Prefix6: l.cfg.HostVeth6, Queues: workers, MTU: l.ports.MTU(),
		Mark: l.cfg.HostVethMark, Table: l.cfg.HostVethTable,
		StateDir: l.cfg.StateDir, ProcSys: l.cfg.ProcSys, Log: l.log,
	})
	if err != nil {
		return err
	}
	l.host = h
	if !h.Masquerades {
		l.warnings.Add(warning.PacketPath, "", "nftables could not be programmed: endpoints on other nodes that are reached through the kernel get no traffic")
	}
	if h.ReturnPathErr != nil {
		l.warnings.Add(warning.PacketPath, "", "connection marks cannot bring answers back: nat in place of dnat, so that endpoints do not see clients' addresses: %v", h.ReturnPathErr)
	}
	l.ports.AddHost(ports.Host{
		Name: h.Name(), Index: h.Index(), MAC: h.MAC(), MTU: h.MTU(), Queues: workers,
	})
	return nil
}

// routedHost is the host veth for the routes, nil without it.
func (l *LB) routedHost() *route.HostVeth {
	if l.host == nil {
		return nil
	}
	hp := l.host.Route(l.ports.HostID())
	return &hp
}

func cleanupHostVeth(cfg Config) error { return hostveth.CleanupStale(cfg.StateDir, cfg.ProcSys) }

// forwardBehind has the kernel forward the answers of endpoints that are
// reached through it: packets that arrive on their interface. Where they see
// their clients' addresses it prepares the way back too.
func (l *LB) forwardBehind(frontends []*table.FrontendEntry) error {
	if l.host == nil {
		return nil
	}
	var errs []error
	type behind struct {
		pool *table.PoolEntry
		mode conntrack.Mode
	}
	seen := map[behind]bool{}
	for _, f := range frontends {
		if seen[behind{f.Pool, f.Mode}] {
			continue
		}
		seen[behind{f.Pool, f.Mode}] = true
		for i := range f.Pool.Endpoints() {
			path, ok := l.router.Load().Lookup(f.Pool.Endpoints()[i].AddrPort.Addr(), 0)
			errs = append(errs, l.wayBackFor(f, &f.Pool.Endpoints()[i], &path))
			if ok && path.Kind == route.Host && !path.Local && path.Interface > 0 {
				if err := l.host.EnableForwarding(path.Interface); err != nil {
					errs = append(errs, fmt.Errorf("forwarding for endpoint %v: %w", f.Pool.Endpoints()[i].AddrPort, err))
				}
			}
		}
	}
	return errors.Join(errs...)
}
