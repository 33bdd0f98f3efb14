package announcer

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/weirlb/weir/cmd/weir/translate"
	"github.com/weirlb/weir/lb/announce"
	"github.com/weirlb/weir/lb/table"
)

// lingering are frontends that a change of Services takes away or leaves without endpoints, while
// routers may still send: they need some milliseconds to follow a withdrawal. Until then the
// frontends are served as before.
type lingering struct {
	time      atomic.Int64             // announce.lingerMilliseconds, a time.Duration; 0: nothing lingers
	withdrawn map[netip.Addr]time.Time // until when packets may come, of addresses that were announced
	services  map[string]*lingeringService
	begun     chan struct{} // gets a value when a Service is added
}

// lingeringService is a Service of which frontends linger.
type lingeringService struct {
	version   *table.Service // of the source; without frontends: it is deleted
	frontends map[table.Key]lingeringFrontend
}

// lingeringFrontend is a frontend as it was before the withdrawal.
type lingeringFrontend struct {
	entry *table.FrontendEntry
	until time.Time
}

// follow notes which addresses are announced no more, whatever the reason is.
func (l *lingering) follow(before, after []announce.Decision, now time.Time) {
	if l.withdrawn == nil {
		l.withdrawn = map[netip.Addr]time.Time{}
	}
	maps.DeleteFunc(l.withdrawn, func(_ netip.Addr, until time.Time) bool { return !now.Before(until) })
	until := now.Add(time.Duration(l.time.Load()))
	for i := range before {
		if before[i].Reason == announce.Announced {
			l.withdrawn[before[i].Address] = until
		}
	}
	for i := range after {
		if after[i].Reason == announce.Announced {
			delete(l.withdrawn, after[i].Address)
		}
	}
}

// keep makes of a change the one that leaves the frontends of withdrawn addresses as they are in
// the present snapshot. had are the frontends before the change, of all Services that it names.
// same is true if no frontend lingers: the change is the given one.
func (l *lingering) keep(put []table.Service, del []string, had map[string][]announcedFrontend, present *table.Snapshot, now time.Time) (_ []table.Service, _ []string, same bool) {
	for i := range put {
		l.leave(put[i].Name, &put[i], had[put[i].Name], present, now)
	}
	for _, name := range del {
		l.leave(name, nil, had[name], present, now)
	}
	fewer := l.yield(put)
	if len(l.services) == 0 && len(fewer) == 0 {
		return put, del, true
	}
	var b translate.Batch
	for i := range put {
		if s := l.services[put[i].Name]; s != nil {
			l.renew(&b, s)
		} else {
			b.Put = append(b.Put, put[i])
		}
	}
	for _, name := range del {
		if s := l.services[name]; s != nil {
			l.renew(&b, s)
		} else {
			b.Delete = append(b.Delete, name)
		}
	}
	for _, s := range fewer {
		if _, named := had[s.version.Name]; !named {
			l.renew(&b, s)
		}
	}
	return b.Put, b.Delete, false
}

// yield ends the time of frontends that another Service claims now. It returns the Services that
// had them.
func (l *lingering) yield(put []table.Service) (fewer []*lingeringService) {
	if len(l.services) == 0 {
		return nil
	}
	type at struct {
		netip.Addr
		proto uint8
	}
	type claim struct {
		ports portSpan
		name  string
	}
	claimed, ranges := map[table.Key]string{}, map[at][]claim{}
	for i := range put {
		for _, f := range put[i].Frontends {
			claimed[f.Key()] = put[i].Name
			if f.LastPort != 0 {
				k := at{f.AddrPort.Addr(), f.Proto}
				ranges[k] = append(ranges[k], claim{spanOf(f.AddrPort, f.LastPort), put[i].Name})
			}
		}
	}
	for name, s := range l.services {
		before := len(s.frontends)
		maps.DeleteFunc(s.frontends, func(k table.Key, f lingeringFrontend) bool {
			ports := spanOf(f.entry.AddrPort, f.entry.LastPort)
			return claimed[k] != "" && claimed[k] != name ||
				slices.ContainsFunc(ranges[at{f.entry.AddrPort.Addr(), f.entry.Proto}], func(c claim) bool { return c.name != name && ports.hides(c.ports) })
		})
		if len(s.frontends) < before {
			fewer = append(fewer, s)
		}
	}
	return fewer
}

// portSpan is a port, or a range of ports.
type portSpan struct{ first, last uint16 }

func spanOf(ap netip.AddrPort, last uint16) portSpan {
	return portSpan{ap.Port(), max(ap.Port(), last)}
}

// hides reports whether frontends of s would keep ports from one of o: those of fewer ports have them.
func (s portSpan) hides(o portSpan) bool {
	return s.first <= o.last && o.first <= s.last && s.last-s.first <= o.last-o.first
}

// renew adds a Service to a batch with the frontends that linger still.
func (l *lingering) renew(b *translate.Batch, s *lingeringService) {
	if len(s.frontends) > 0 {
		b.Put = append(b.Put, *s.served())
		return
	}
	if delete(l.services, s.version.Name); len(s.version.Frontends) == 0 {
		b.Delete = append(b.Delete, s.version.Name)
	} else {
		b.Put = append(b.Put, *s.version)
	}
}

// leave notes which frontends of a Service linger. version is the next version, nil: it is deleted.
func (l *lingering) leave(name string, version *table.Service, had []announcedFrontend, present *table.Snapshot, now time.Time) {
	s := &lingeringService{frontends: map[table.Key]lingeringFrontend{}}
	before := l.services[name]
	if before != nil {
		maps.Copy(s.frontends, before.frontends)
	}
	for i := range had {
		f := &had[i]
		until := l.withdrawn[f.address]
		if entry := present.Lookup(&f.key); now.Before(until) && f.Endpoints > 0 && !f.held && entry != nil && entry.ServiceName == name {
			s.frontends[f.key] = lingeringFrontend{entry, until}
		}
	}
	delete(l.services, name)
	if version != nil {
		for _, f := range frontendsOf(version) {
			if f.Endpoints > 0 {
				delete(s.frontends, f.key) // it is served again
			}
		}
	}
	if len(s.frontends) == 0 {
		return
	}
	switch {
	case version != nil:
		s.version = cloneService(version)
	case before != nil: // it may have forbidden clients since
		s.version = &table.Service{Name: name, Policy: before.version.Policy}
	default:
		s.version = &table.Service{Name: name}
		for _, f := range s.frontends {
			s.version.Policy = f.entry.Policy
		}
	}
	if l.services == nil {
		l.services = map[string]*lingeringService{}
	}
	l.services[name] = s
	select {
	case l.begun <- struct{}{}:
	default:
	}
}

// cloneService is a Service whose slices nobody else uses.
func cloneService(s *table.Service) *table.Service {
	out := *s
	out.Frontends, out.Listed, out.Pools = slices.Clone(s.Frontends), slices.Clone(s.Listed), slices.Clone(s.Pools)
	for i := range out.Pools {
		out.Pools[i].Endpoints = slices.Clone(out.Pools[i].Endpoints)
	}
	return &out
}

// served is the Service with the frontends that linger.
func (s *lingeringService) served() *table.Service {
	out := cloneService(s.version)
	out.Frontends = slices.DeleteFunc(out.Frontends, func(x table.Frontend) bool {
		_, lingers := s.frontends[x.Key()]
		return lingers
	})
	for _, f := range s.frontends {
		e := f.entry
		frontend := table.Frontend{
			AddrPort: e.AddrPort, Proto: e.Proto, Kind: e.Kind, Pool: len(out.Pools), Mode: e.Mode, ClusterScope: e.ClusterScope,
			LastPort: e.LastPort, Port: e.ListedPort(),
		}
		pool := table.Pool{Algorithm: e.Pool.Algorithm(), AffinitySeconds: e.Pool.AffinitySeconds(), OnEmpty: e.Pool.OnEmpty(), Tier: e.Pool.Tier()}
		for _, x := range e.Pool.Endpoints() {
			pool.Endpoints = append(pool.Endpoints, table.Endpoint{AddrPort: x.AddrPort, Weight: x.Weight, Local: x.Local})
		}
		out.Pools = append(out.Pools, pool)
		out.Frontends = append(out.Frontends, frontend)
	}
	return out
}

// end is the change for which time is up at now.
func (l *lingering) end(now time.Time) (b translate.Batch) {
	for _, s := range l.services {
		before := len(s.frontends)
		maps.DeleteFunc(s.frontends, func(_ table.Key, f lingeringFrontend) bool { return !now.Before(f.until) })
		if len(s.frontends) < before {
			l.renew(&b, s)
		}
	}
	return b
}

// lingers reports whether frontends linger.
func (a *Announcer) lingers() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.lingering.services) > 0
}

// lingerEvery is how often the end of the time is looked for, while frontends linger.
const lingerEvery = 50 * time.Millisecond

// followLingering calls end while frontends linger, until ctx ends.
func (a *Announcer) followLingering(ctx context.Context, end func(now time.Time)) {
	for {
		var tick <-chan time.Time
		if a.lingers() {
			tick = time.After(lingerEvery)
		}
		select {
		case <-ctx.Done():
			return
		case <-a.lingering.begun:
		case <-tick:
			end(time.Now())
		}
	}
}

// EndLingering is the change that takes away the frontends of withdrawn addresses whose time is up
// at now.
func (a *Announcer) EndLingering(now time.Time) translate.Batch {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.lingering.end(now)
}
