package publisher

import (
	"fmt"
	"strings"

	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/cmd/weir/changes"
	"github.com/weirlb/weir/cmd/weir/problem"
)

// DrainEndpoints drains endpoints for the operator, or ends that: see drains.Drains.
func (p *Publisher) DrainEndpoints(names []string, undo bool) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.drains.DrainEndpoints(names, undo, p.translate.Listed); err != nil {
		return err
	}
	what := "the operator drains endpoints"
	if undo {
		what = "the operator ends the drain of endpoints"
	}
	p.log.Info(what, "endpoints", strings.Join(names, " "))
	p.publishDrained(what)
	p.drains.Keep()
	return nil
}

// publishDrained publishes the drained endpoints. Preconditions: p.mu is held.
func (p *Publisher) publishDrained(why string) {
	p.checks.SetReadiness(p.readiness())
	if b := p.translate.SetDrained(p.drains.Endpoints()); !b.Empty() {
		p.publish(b, changes.NewCause(why))
	}
}

// forgetDrained ends the drain of endpoints that are gone. Preconditions: p.mu is held.
func (p *Publisher) forgetDrained() {
	if p.drains.Forget(p.translate.Listed) {
		p.publishDrained("a drained endpoint is gone")
		p.drains.Keep()
	}
}

// KeepDrains keeps the drains for the next process.
func (p *Publisher) KeepDrains() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.drains.Keep()
}

// ForgetDrains keeps the next process from taking the drains over.
func (p *Publisher) ForgetDrains() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.drains.RemoveFile()
}

// Drains are the drains in progress, with that many connections.
func (p *Publisher) Drains(connections int) *api.Drains {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.drains.Answer(connections, p.cfg.Announce.Linger())
}

// NodeProblems are those of drains and of the node's addresses.
func (p *Publisher) NodeProblems() []problem.Problem {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := p.drains.Problems()
	if p.synced && p.translate.WantsNodeAddress() {
		out = append(out, problem.Problem{
			Kind: problem.NoNodeAddress, Object: problem.Weir, Field: "nodePortAddresses",
			Reason: fmt.Sprintf("none of the node's addresses is in %s: node ports are not served", strings.Join(p.cfg.NodePortAddresses, ", ")),
		})
	}
	return out
}
