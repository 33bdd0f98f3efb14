package publisher

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weirlb/weir/cmd/weir/config"
	"github.com/weirlb/weir/cmd/weir/drains"
	"github.com/weirlb/weir/cmd/weir/event"
	"github.com/weirlb/weir/cmd/weir/healthcheck"
	"github.com/weirlb/weir/cmd/weir/healthz"
	"github.com/weirlb/weir/cmd/weir/problem"
	"github.com/weirlb/weir/cmd/weir/source"
	"github.com/weirlb/weir/cmd/weir/translate"
	"github.com/weirlb/weir/discovery"
	"github.com/weirlb/weir/lb/phase"
	"github.com/weirlb/weir/lb/route"
	"github.com/weirlb/weir/lb/table"
	"github.com/weirlb/weir/topology"
)

// calls notes in which order a Publisher calls its parts.
type calls struct{ list []string }

func (c *calls) note(format string, args ...any) {
	c.list = append(c.list, strings.TrimSpace(fmt.Sprintf(format, args...)))
}

func namesOf(put []table.Service, del []string) string {
	var out []string
	for i := range put {
		out = append(out, put[i].Name)
	}
	slices.Sort(out)
	for _, name := range del {
		out = append(out, "-"+name)
	}
	return strings.Join(out, " ")
}

// path is a PacketPath with real tables.
type path struct {
	*calls
	tables *table.Table
	err    error // of Apply, which then leaves the tables as they are
}

func (p *path) Tables() *table.Table { return p.tables }

func (p *path) Apply(put []table.Service, del []string, _ *table.Change) error {
	p.note("apply %s", namesOf(put, del))
	if p.err != nil {
		return p.err
	}
	c, err := p.tables.Apply(put, del)
	for _, e := range c.Errors {
		err = errors.Join(err, e)
	}
	return err
}

// host has addresses on an attached interface.
type host []netip.Addr

func (h *host) Local(a netip.Addr) bool                     { return slices.Contains(*h, a) }
func (h *host) Primary([]netip.Addr) []route.PrimaryAddress { return nil }
func (h *host) Addresses() (out []route.Address) {
	for _, a := range *h {
		out = append(out, route.Address{Name: "eth0", Prefix: netip.PrefixFrom(a, a.BitLen())})
	}
	return out
}

func (h *host) In(prefixes []netip.Prefix) (out []netip.Addr) {
	for _, a := range *h {
		if slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return p.Contains(a) }) {
			out = append(out, a)
		}
	}
	return out
}

type announcing struct {
	*calls
	ends    translate.Batch // the next EndLingering
	refused string
}

func (a *announcing) Leaving(put []table.Service, del []string, _ *table.Table) ([]table.Service, []string, *table.Change) {
	a.note("withdraw %s", namesOf(put, del))
	return put, del, nil
}

func (a *announcing) Follow(put []table.Service)             { a.note("announce %s", namesOf(put, nil)) }
func (a *announcing) EndLingering(time.Time) translate.Batch { return a.ends }
func (a *announcing) Reload(*config.Configuration) string {
	a.note("announcer reload")
	return a.refused
}

// monitor has an endpoint that fails.
type monitor struct {
	*calls
	fails netip.AddrPort
}

func (m *monitor) Apply(*discovery.Update, *translate.Guard) { m.note("health of endpoints") }
func (m *monitor) SetGuard(*translate.Guard)                 { m.note("guard of probes") }
func (m *monitor) WarmsUp(discovery.ServiceName) bool        { return false }
func (m *monitor) Health(_ *discovery.Service, _ *discovery.Port, at netip.AddrPort) topology.Health {
	return topology.Health{Failing: at == m.fails}
}

type checking struct {
	*calls
	addresses []netip.Addr
	readiness healthcheck.Readiness
}

func (c *checking) Apply(*discovery.Update)         { c.note("checks") }
func (c *checking) Recount([]discovery.ServiceName) { c.note("recount checks") }
func (c *checking) SetAddresses(addrs []netip.Addr) {
	c.addresses = addrs
	c.note("addresses of checks")
}
func (c *checking) SetReadiness(r healthcheck.Readiness) { c.readiness = r }

// services is a source that is asked, and delivers nothing by itself.
type services struct {
	source.Source
	list []*discovery.Service
}

func (s *services) Services() []*discovery.Service { return s.list }
func (s *services) Stats() discovery.Stats         { return discovery.Stats{Services: len(s.list)} }
func (s *services) Reconsider()                    {}
func (s *services) String() string                 { return "test" }

// rig is a Publisher with fakes around it, and the calls that it has made.
type rig struct {
	*Publisher
	calls
	cfg      *config.Configuration
	path     *path
	host     *host
	announce *announcing
	monitor  *monitor
	checks   *checking
	source   *services
	events   *event.Ring
	problems *problem.Registry
	took     []int // calls of Taken
	stopped  error
}

// closed is a Publisher that is not open yet.
func closed(t *testing.T) *rig {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	r := &rig{cfg: config.Default(), host: &host{netip.MustParseAddr("192.0.2.1")}, source: &services{}}
	r.cfg.NodeName, r.cfg.Admin.Socket = "edge-1", filepath.Join(t.TempDir(), "socket")
	r.cfg.ClusterIPs, r.cfg.NodePortAddresses = true, []string{"192.0.2.0/24"}
	r.path = &path{calls: &r.calls, tables: table.New(table.Config{Tick: func() uint32 { return 0 }})}
	r.announce, r.monitor, r.checks = &announcing{calls: &r.calls}, &monitor{calls: &r.calls}, &checking{calls: &r.calls}
	r.events, r.problems = event.NewRing(log), problem.NewRegistry(log)
	r.Publisher = New(r.cfg, Config{
		Drains: drains.New(r.cfg, log), Taken: func(n int) { r.took = append(r.took, n) }, Stop: func(err error) { r.stopped = err },
		Updating: &healthz.Pending{}, Phases: phase.New(time.Now(), log), Problems: r.problems, Events: r.events, Log: log,
	})
	r.From(r.source, source.ReachOf(r.cfg))
	return r
}

func (r *rig) open() {
	r.Open(Parts{PacketPath: r.path, Addresses: r.host, Announcer: r.announce, Health: r.monitor, Checks: r.checks})
}

// serving is a Publisher that has published Services.
func serving(t *testing.T, list ...*discovery.Service) *rig {
	t.Helper()
	r := closed(t)
	r.open()
	r.Begin()
	r.source.list = list
	r.Deliver(&discovery.Update{Put: list, Synced: true})
	if !r.Serving() || len(r.took) != 1 {
		t.Fatalf("serving %v, taken %v", r.Serving(), r.took)
	}
	r.list = nil
	return r
}

// web is a Service with a cluster IP, an address of a load balancer, a node port, and endpoints.
func web(name string, host byte, endpoints ...string) *discovery.Service {
	svc := &discovery.Service{
		Name:            discovery.ServiceName{Namespace: "ns", Name: name},
		ClusterIPs:      []netip.Addr{netip.AddrFrom4([4]byte{10, 96, 0, host})},
		LoadBalancerIPs: []netip.Addr{netip.AddrFrom4([4]byte{203, 0, 113, host})},
		Ports:           []discovery.Port{{Name: "http", Protocol: "TCP", Port: 80, NodePort: 30000 + uint16(host)}},
		Families:        discovery.IPv4,
	}
	for _, text := range endpoints {
		svc.Ports[0].Endpoints = append(svc.Ports[0].Endpoints, topology.Endpoint{AddrPort: netip.MustParseAddrPort(text), Ready: true, Serving: true})
	}
	return svc
}

// endpoints are those that the tables have for a Service's address, in order.
func (r *rig) endpoints(at string) string {
	key := table.MakeKey(netip.MustParseAddrPort(at), 6)
	entry := r.path.tables.Load().Lookup(&key)
	if entry == nil {
		return "no frontend"
	}
	var out []string
	for _, e := range entry.Pool.Endpoints() {
		out = append(out, e.AddrPort.String())
	}
	return strings.Join(out, " ")
}

// told are the texts of events, the oldest first; without kinds, of all.
func (r *rig) told(kinds ...event.Kind) (out []string) {
	list, _ := r.events.List(&event.Filter{})
	for _, e := range list {
		if len(kinds) == 0 || slices.Contains(kinds, e.Kind) {
			out = append(out, e.Service+": "+e.Text)
		}
	}
	return out
}
