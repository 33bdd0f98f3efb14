package daemon

import (
	"time"

	"github.com/weirlb/weir/cmd/weir/answers"
	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/cmd/weir/healthz"
	"github.com/weirlb/weir/cmd/weir/privilege"
	"github.com/weirlb/weir/cmd/weir/translate"
	"github.com/weirlb/weir/discovery"
	"github.com/weirlb/weir/topology"
)

// answersOf has the answers of a daemon whose packet path is open.
func answersOf(d *Daemon) *answers.Source {
	return &answers.Source{
		Published: published{d}, Process: process{d}, Operator: d,
		NodeName: d.cfg.NodeName, LB: d.lb, Services: d.source, Announcer: d.announcer, Attempts: d.attempts,
		Problems: d.problems, EventRing: d.events, Phases: d.phases, Level: d.level, Log: d.log,
	}
}

// published implements answers.Published. Preconditions of all methods: d.mu is not held.
type published struct{ d *Daemon }

func (p published) Node() topology.Node {
	p.d.mu.Lock()
	defer p.d.mu.Unlock()
	return p.d.node.Node
}

func (p published) NodePorts() (addresses []api.NodePortAddress, synced bool) {
	p.d.mu.Lock()
	defer p.d.mu.Unlock()
	return p.d.nodePortAddresses(), p.d.synced
}

func (p published) Drained() translate.DrainedSet {
	p.d.mu.Lock()
	defer p.d.mu.Unlock()
	return translate.NewDrainedSet(drainedOf(p.d.drained))
}

func (p published) Guard() translate.Guard {
	p.d.mu.Lock()
	defer p.d.mu.Unlock()
	return translate.GuardOf(p.d.cfg, p.d.lb.Router().Local)
}

func (p published) Claims(svc *discovery.Service) []translate.Claim {
	p.d.mu.Lock()
	defer p.d.mu.Unlock()
	return p.d.translate.Claims(svc)
}

func (p published) Served() []*discovery.Service {
	p.d.mu.Lock()
	defer p.d.mu.Unlock()
	return p.d.translate.Services()
}

func (p published) Tiers(service string, port uint16, proto uint8) []api.TierInUse {
	return p.d.tiers.of(service, port, proto)
}

func (p published) Removed() uint64 { return p.d.withdrawn.Load() }

// process implements answers.Process.
type process struct{ d *Daemon }

func (p process) Health() healthz.Health            { return p.d.Health() }
func (p process) NotEligible() string               { return p.d.notEligible() }
func (p process) DrainNow(now time.Time) *api.Drain { return p.d.drainNow(now) }
func (p process) Privileges() *privilege.Status     { return p.d.privileges.Load() }
func (p process) LookForProblems()                  { p.d.lookForProblems() }

func (p process) Kernel() []api.Feature {
	if k := p.d.kernel.Load(); k != nil {
		return *k
	}
	return nil
}
