package lb

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/aligned"
	"github.com/weirlb/weir/lb/localports"
	"github.com/weirlb/weir/lb/route"
	"github.com/weirlb/weir/lb/steer"
	"github.com/weirlb/weir/lb/table"
)

// sharedPorts are the ports from which Weir translates on addresses that the node has too.
//
// With a program that asks the flow table on every interface, a packet is Weir's by its flow
// whatever its port. Flows then get all ports that nothing of the node's uses. Until all programs are
// this process's, and without such programs, a packet is Weir's by a range of ports, and flows get
// ports of that range: the program of the last process knows the flows of its time, and no later
// flow. When it is of an earlier release it knows the range alone.
type sharedPorts struct {
	configured localports.Range // taken whole without a flow table to ask
	auto       bool             // the range is the default: flows may get others
	protected  []uint16

	flows     *conntrack.Table
	tables    *table.Table
	router    *route.Watcher
	program   *steer.Program
	cache     *cache
	givesBack bool // the host veth gives packets without a flow to the kernel

	chosen bool  // the interfaces are attached, or have failed
	byFlow error // why packets are not Weir's by flow, nil if they are
	failed error // of the attachment: the program of the last process may be on an interface
	former bool  // flows of the last process have other ports than those of the range
	looks  int   // with former flows
	// Of the last look at the node:
	wide   localports.Range // which flows get with byFlow and auto
	last   used
	unseen error // why the next one found nothing
}

// widest is the range without the ephemeral ports and the node ports of the defaults.
var widest = localports.Range{Lo: 61000, Hi: 29999}

var errNotAttached = errors.New("no interface is attached yet")

// given is the range of which new flows get ports.
func (s *sharedPorts) given() localports.Range {
	if s.auto && s.byFlow == nil {
		return s.wide
	}
	return s.configured
}

// owned is the range at which packets without a flow are answered like those to Weir's own ports,
// unless they may be answers to the kernel.
func (s *sharedPorts) owned() localports.Range {
	if s.byFlow == nil {
		return localports.Range{Lo: steer.NoPorts[0], Hi: steer.NoPorts[1]}
	}
	return s.configured
}

// steered is the range at which the program takes every packet.
func (s *sharedPorts) steered() localports.Range {
	if s.byFlow != nil && s.former {
		return localports.Range{Lo: conntrack.FirstPort, Hi: 65535}
	}
	return s.owned()
}

// used are ports that new flows do not get.
type used struct {
	settled *conntrack.PortSet // protected, ephemeral, reserved: these hardly change
	now     *conntrack.PortSet // those and the ports of sockets and frontends
}

// look finds the ports that the node uses. With the error nothing is known of its sockets. It may be
// called without LB.mu.
func (s *sharedPorts) look() (used, error) {
	u := used{new(conntrack.PortSet), new(conntrack.PortSet)}
	for _, p := range s.protected {
		u.settled.Add(p, p)
	}
	if s.auto { // else the check of the configuration has compared the range
		var reserved conntrack.PortSet
		if err := localports.Ephemeral(u.settled, &reserved); err != nil {
			return u, err
		}
		for p := uint16(conntrack.FirstPort); p < s.configured.Lo; p++ { // others may be reserved for Weir
			if reserved.Has(p) {
				u.settled.Add(p, p)
			}
		}
	}
	*u.now = *u.settled
	local := s.router.Load()
	addFrontends(u.now, s.tables.Load().All(), local.Local)
	r := s.configured
	if s.auto {
		r = widest
	}
	return u, localports.Sockets(r.Lo, r.Hi, u.now)
}

// addFrontends adds the ports of frontends on addresses of the node.
func addFrontends(set *conntrack.PortSet, all iter.Seq[*table.FrontendEntry], local func(netip.Addr) bool) {
	for f := range all {
		if local(f.AddrPort.Addr()) {
			set.Add(f.AddrPort.Port(), max(f.AddrPort.Port(), f.LastPort))
		}
	}
}

// set notes the ports that the node uses, and reports whether new flows get others now.
func (s *sharedPorts) set(u used) (changed bool) {
	wide := s.configured
	if s.auto && widest.Count(u.settled) > wide.Count(nil) {
		wide = widest.Within(u.settled)
	}
	if s.wide == wide && s.last.now != nil && *s.last.now == *u.now && *s.last.settled == *u.settled {
		return false
	}
	s.wide, s.last = wide, u
	return true
}

// except are the ports of the given range that new flows do not get; nil: none. Where the node uses the
// whole range, flows get ports of sockets and frontends rather than none.
func (s *sharedPorts) except() *conntrack.PortSet {
	for _, set := range []*conntrack.PortSet{s.last.now, s.last.settled} {
		if set != nil && s.given().Count(set) > 0 {
			return set
		}
	}
	return nil
}

// lookEvery is the time between two looks at the node's ports, of which one in formerEvery reads the
// whole flow table as well, while flows of the last process have other ports.
const (
	lookEvery   = 5 * time.Second
	formerEvery = 12
)

// follow keeps new flows off the ports that the node uses. mu is LB.mu, and refresh publishes them.
func (s *sharedPorts) follow(ctx context.Context, mu *sync.Mutex, refresh func() error, log *slog.Logger) {
	tick := aligned.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		u, err := s.look()
		mu.Lock()
		if s.chosen && s.update(u, err) {
			if err := refresh(); err != nil {
				log.Warn("SNAT ports", "err", err)
			}
		}
		mu.Unlock()
	}
}

// choose finds the ports that new flows can have from now on. failed is the error of the attachment.
// Preconditions: LB.mu is held.
func (s *sharedPorts) choose(failed error, log *slog.Logger) {
	s.failed, s.chosen = failed, true
	s.update(s.look())
	// A program that asks the flow table may have failed on one interface alone.
	s.former = s.former || s.byFlow != nil && s.hasFormer()
	if s.auto && s.byFlow != nil {
		log.Info("SNAT ports on addresses of the node", "ports", s.given().Text(), "because", s.byFlow)
	}
}

// update takes over what a look has found, and reports whether the sources have changed. Preconditions:
// LB.mu is held, and the interfaces are attached.
func (s *sharedPorts) update(u used, err error) (changed bool) {
	was, former := s.byFlow, s.former
	s.unseen = err
	if err == nil {
		changed = s.set(u)
	}
	switch {
	case s.failed != nil:
		s.byFlow = s.failed
	case s.cache.off != nil:
		s.byFlow = s.cache.off
	case err != nil && s.wide.Lo == 0:
		s.byFlow = err
	default:
		s.byFlow = s.program.ByFlow()
	}
	if s.byFlow != nil && s.former {
		if s.looks++; s.looks%formerEvery == 0 {
			s.former = s.hasFormer()
		}
	}
	return changed || (was == nil) != (s.byFlow == nil) || former != s.former
}

// keepFormer has the program take the packets of restored flows at any port, and reports whether
// there are such flows. It is called before a program is attached that cannot ask the flow table.
// Preconditions: LB.mu is held.
func (s *sharedPorts) keepFormer() bool {
	s.former = s.hasFormer()
	return s.former
}

// hasFormer reports whether flows of the last process have ports of shared addresses that the
// range without a flow table to ask does not have. Without the host veth packets that are no flow's
// could not be given back to the kernel: then such flows end.
func (s *sharedPorts) hasFormer() (found bool) {
	if !s.givesBack {
		return false
	}
	r, local := s.configured, s.router.Load()
	s.flows.Range(func(ref conntrack.Ref) bool {
		if s.flows.Entry(ref).Mode != conntrack.ModeNAT {
			return true
		}
		k := s.flows.Entry(ref.Other()).Tuple()
		to := k.Dst()
		found = (to.Port() < r.Lo || to.Port() > r.Hi) && local.Local(to.Addr())
		return !found
	})
	return found
}

// SNATPorts is how many ports of an address of the node connections to an endpoint may have.
type SNATPorts struct {
	Ports string // such as 61000-65535
	Count int
	// Reason is why they are those of the configured range alone, "" if they are not or need not be.
	Reason string
}

func (s *sharedPorts) status() SNATPorts {
	r := s.given()
	out := SNATPorts{Ports: r.Text(), Count: r.Count(s.except())}
	switch {
	case s.byFlow != nil && s.former:
		out.Reason = fmt.Sprintf("%v; until flows of the last process end, packets to all ports from %d are Weir's to sort",
			s.byFlow, conntrack.FirstPort)
	case !s.auto:
	case s.byFlow != nil:
		out.Reason = s.byFlow.Error()
	case s.unseen != nil:
		out.Reason = fmt.Sprintf("ports that the node has begun to use are not left out: %v", s.unseen)
	case out.Count < widest.Count(nil)/2:
		out.Reason = fmt.Sprintf("the node uses or reserves the others of %s", widest.Text())
	}
	return out
}
