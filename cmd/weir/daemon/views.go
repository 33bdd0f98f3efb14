package daemon

import (
	"time"

	"github.com/weirlb/weir/cmd/weir/answers"
	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/cmd/weir/config"
	"github.com/weirlb/weir/cmd/weir/healthz"
	"github.com/weirlb/weir/cmd/weir/privilege"
	"github.com/weirlb/weir/cmd/weir/process"
)

// answersOf has the answers of a daemon whose packet path is open.
func answersOf(d *Daemon) *answers.Source {
	return &answers.Source{
		Published: d.publisher, Process: state{d}, Operator: operator{d, d.ending},
		NodeName: d.cfg.NodeName, LB: d.lb, Services: d.source, Announcer: d.announcer, FlowLog: d.flowLog, Attempts: d.attempts, Monitor: d.health,
		Problems: d.problems, EventRing: d.events, Phases: d.phases, Level: d.level, Log: d.log,
	}
}

// state implements answers.Process.
type state struct{ d *Daemon }

func (p state) Health() healthz.Health            { return p.d.Health() }
func (p state) NotEligible() string               { return p.d.notEligible() }
func (p state) DrainNow(now time.Time) *api.Drain { return p.d.drainNow(now) }
func (p state) Privileges() *privilege.Status     { return p.d.privileges.Status() }
func (p state) Kernel() []api.Feature             { return p.d.privileges.Features() }
func (p state) LookForProblems()                  { p.d.lookForProblems() }

// operator implements answers.Operator.
type operator struct {
	*Daemon
	*process.Ending
}

// end implements process.Node.
type end struct{ d *Daemon }

func (n end) Configuration() config.Configuration { return n.d.publisher.Configuration() }
func (n end) Serving() bool                       { return n.d.publisher.Serving() }
func (n end) PacketPath() process.PacketPath      { return n.d.lb }
func (n end) KeepsRoutes() bool                   { return n.d.announcer.Keeps() }

func (n end) Withdraw() time.Duration {
	if n.d.announcer == nil {
		return 0
	}
	n.d.announcer.Withdraw()
	cfg := n.Configuration()
	return cfg.Announce.Linger()
}

func (n end) ForgetDrains() { n.d.publisher.ForgetDrains() }
