// Package publisher takes what the source delivers to the packet path: it translates, has addresses
// withdrawn before frontends go and announced after they are there, and tells what has changed.
//
//	source --Update--> translator --[]table.Service--> PacketPath
//	                       ^
//	     addresses of the node, health, drains, configuration
//
// A mutex orders all publications; nothing here is on a packet's path.
package publisher

import (
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/cmd/weir/changes"
	"github.com/weirlb/weir/cmd/weir/config"
	"github.com/weirlb/weir/cmd/weir/drains"
	"github.com/weirlb/weir/cmd/weir/event"
	"github.com/weirlb/weir/cmd/weir/healthz"
	"github.com/weirlb/weir/cmd/weir/problem"
	"github.com/weirlb/weir/cmd/weir/source"
	"github.com/weirlb/weir/cmd/weir/translate"
	"github.com/weirlb/weir/discovery"
	"github.com/weirlb/weir/lb/phase"
	"github.com/weirlb/weir/topology"
)

// Config is for New.
type Config struct {
	// Drains are those of the operator: their endpoints are the Publisher's.
	Drains *drains.Drains
	// Taken is called once traffic is taken, for that many Services. It must not call the Publisher.
	Taken func(services int)
	// Stop ends the process with a fault.
	Stop func(error)
	// Updating is the progress of updates.
	Updating *healthz.Pending
	Phases   *phase.Phases
	Problems *problem.Registry
	Events   *event.Ring
	Log      *slog.Logger
}

// Publisher publishes Services. It implements answers.Published.
type Publisher struct {
	drains   *drains.Drains
	taken    func(services int)
	stop     func(error)
	updating *healthz.Pending
	phases   *phase.Phases
	problems *problem.Registry
	log      *slog.Logger
	source   source.Source
	reach    *translate.SharedReach // as the source knows it

	published atomic.Bool // the first full view of Services
	withdrawn atomic.Uint64
	tiers     changes.Tiers
	tell      changes.Teller

	mu        sync.Mutex // guards the fields below, and orders publications
	path      PacketPath // as all parts, nil until Open
	addresses Addresses
	announcer Announcer
	health    Health
	checks    Checks
	cfg       *config.Configuration
	translate *translate.Translator
	pending   *pending // before traffic is taken
	begun     bool     // Begin was called
	node      discovery.Node
	nodePorts []api.NodePortAddress // as last logged
	synced    bool
	known     int // Services of the source, as last delivered
}

// New makes a Publisher, which owns cfg from now on: see Reconfigure.
func New(cfg *config.Configuration, c Config) *Publisher {
	p := &Publisher{
		drains: c.Drains, taken: c.Taken, stop: c.Stop, updating: c.Updating, phases: c.Phases, problems: c.Problems, log: c.Log,
		cfg: cfg, node: discovery.Node{Node: topology.Node{Name: cfg.NodeName}},
		pending: &pending{put: map[discovery.ServiceName]*discovery.Service{}},
	}
	p.tell.Events = c.Events
	p.problems.OnEvent(p.tell.Problem)
	return p
}

// From sets the source, which knows reach of this node, before it delivers.
func (p *Publisher) From(s source.Source, reach *translate.SharedReach) {
	p.source, p.reach, p.tell.Source = s, reach, s
}

// Open sets the parts. Nothing is published before Begin.
func (p *Publisher) Open(parts Parts) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.path, p.addresses, p.announcer = parts.PacketPath, parts.Addresses, parts.Announcer
	p.health, p.checks = parts.Health, parts.Checks
	p.translate = translate.New(p.options())
	p.followReach()
	p.checks.SetAddresses(p.checkAddresses())
	p.checks.SetReadiness(p.readiness())
	if p.drains.Restore() {
		p.publishDrained("drained before the start")
	}
}

func (p *Publisher) options() translate.Options {
	return translate.Options{
		Node:           p.node.Node,
		NodeAddresses:  p.nodeAddresses(),
		Local:          p.addresses.Local,
		ClusterIPs:     p.cfg.ClusterIPs,
		ExternalIPs:    p.cfg.ExternalIPs,
		ProtectedPorts: p.cfg.ProtectedPorts,
		Listener:       p.cfg.ListenerAt,
		SNATPorts:      p.cfg.SNAT.Range(),
		DenyLists:      p.cfg.DenyLists,
		Guard:          translate.GuardOf(p.cfg, p.addresses.Local),
		Health:         p.health.Health,
		WarmsUp:        p.health.WarmsUp,

		LoadBalancerClass: p.cfg.LoadBalancerClass,
		Mode:              translate.Mode(p.cfg.Forwarding.Mode),
	}
}

// Reconfigure has change change the configuration, and publishes what follows. Before any later
// publication it calls done, with the objects of announcements that are refused, "" if none is.
// Neither may call the Publisher.
func (p *Publisher) Reconfigure(change func(*config.Configuration), done func(refused string)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change(p.cfg)
	p.checks.SetAddresses(p.checkAddresses())
	refused := p.announcer.Reload(p.cfg)
	if refused != "" {
		p.log.Warn("announce.objects are not taken over", "reason", refused)
	}
	p.logNodePorts()
	// Before the source has synced too: its first update is translated by these options.
	p.translate.SetOptions(p.options())
	if p.synced {
		p.publish(p.translate.Apply(&discovery.Update{Put: p.source.Services()}), changes.NewCause("the configuration has changed"))
	}
	p.followReach()
	p.readinessChanged()
	done(refused)
}

// Configuration is that of now.
func (p *Publisher) Configuration() config.Configuration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return *p.cfg
}

// Serving reports whether traffic is taken.
func (p *Publisher) Serving() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.synced
}

// HasPublished reports whether the first full view of Services is published. It waits for no publication.
func (p *Publisher) HasPublished() bool { return p.published.Load() }

// Node is the node as the source has told it last.
func (p *Publisher) Node() topology.Node {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.node.Node
}

// NodePorts are the addresses on which node ports are served. synced is true once traffic is taken.
func (p *Publisher) NodePorts() (addresses []api.NodePortAddress, synced bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.nodePortAddresses(), p.synced
}

// Readiness is what the node combines with the conditions of endpoints.
func (p *Publisher) Readiness() *translate.Readiness {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.readiness()
}

// Claims are the frontends that a Service claims. It waits for a publication.
func (p *Publisher) Claims(svc *discovery.Service) []translate.Claim {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.translate.Claims(svc)
}

// Served are the Services that are translated.
func (p *Publisher) Served() []*discovery.Service {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.translate.Services()
}

// Tiers are those in use of a Service port.
func (p *Publisher) Tiers(service string, port uint16, proto uint8) []api.TierInUse {
	return p.tiers.Of(service, port, proto)
}

// Removed counts the Services that the source has withdrawn.
func (p *Publisher) Removed() uint64 { return p.withdrawn.Load() }
