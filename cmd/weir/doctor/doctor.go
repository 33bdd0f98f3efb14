// Package doctor examines a node: the running Weir and the machine in a single list, each
// entry with a verdict, the fact, and the command that mends it. It changes nothing.
package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/cmd/weir/config"
	"github.com/weirlb/weir/cmd/weir/hostcheck"
	"github.com/weirlb/weir/cmd/weir/problem"
	"github.com/weirlb/weir/cmd/weir/translate"
)

// Verdict is the meaning of a finding for traffic.
type Verdict string

// Verdicts, the worst first.
const (
	Fault   Verdict = "fault"   // traffic is lost or misdirected, now or after the next start
	Warning Verdict = "warning" // slower, or in danger
	OK      Verdict = "ok"
)

var verdicts = []Verdict{Fault, Warning, OK}

// Finding is the result of an examination.
type Finding struct {
	Verdict Verdict `json:"verdict"`
	Subject string  `json:"subject"` // "interface eth0"
	Fact    string  `json:"fact"`
	Mend    string  `json:"mend,omitempty"` // the command or setting that mends it
}

// Report is the output of weir doctor.
type Report struct {
	Node string `json:"node"`
	// Running is true where a Weir has answered.
	Running  bool      `json:"running"`
	Findings []Finding `json:"findings"`
	// KubeProxy compares the rules of kube-proxy with Weir's choice, for each mode that has
	// some.
	KubeProxy []Comparison `json:"kubeProxy,omitempty"`
}

// Faults is the number of faults.
func (r *Report) Faults() (n int) {
	for _, f := range r.Findings {
		if f.Verdict == Fault {
			n++
		}
	}
	return n
}

// add adds a finding.
func (r *Report) add(v Verdict, subject, format string, args ...any) *Finding {
	r.Findings = append(r.Findings, Finding{Verdict: v, Subject: subject, Fact: fmt.Sprintf(format, args...)})
	return &r.Findings[len(r.Findings)-1]
}

// sort puts the worst findings first.
func (r *Report) sort() {
	slices.SortStableFunc(r.Findings, func(a, b Finding) int {
		return slices.Index(verdicts, a.Verdict) - slices.Index(verdicts, b.Verdict)
	})
}

// patient is what is examined, with the findings so far.
type patient struct {
	cfg    *config.Configuration
	client *api.Client
	status *api.Status // nil: no Weir is running
	// frontends are those of the running Weir, or those that it would have.
	frontends []api.Frontend
	drained   translate.DrainedSet // by weir drain
	imagined  *imagined            // nil where Weir is running
	paths     *survey
	report    *Report
}

func (p *patient) add(v Verdict, subject, format string, args ...any) *Finding {
	return p.report.add(v, subject, format, args...)
}

// look has look add findings, and without any but OK adds one that says what it has looked at.
func (p *patient) look(subject string, look func(), format string, args ...any) {
	before := len(p.report.Findings)
	look()
	if !slices.ContainsFunc(p.report.Findings[before:], func(f Finding) bool { return f.Verdict != OK }) {
		p.add(OK, subject, format, args...)
	}
}

// mend adds the command that mends a finding.
func (f *Finding) mend(format string, args ...any) { f.Mend = fmt.Sprintf(format, args...) }

// loader loads the configuration. running is nil without a running Weir.
type loader func(running *api.Status) (*config.Configuration, error)

// admit begins an examination with the state of Weir and the configuration.
func admit(ctx context.Context, load loader, client *api.Client) (*patient, error) {
	p := &patient{client: client, report: &Report{Findings: []Finding{}}}
	if err := p.ask(ctx); err != nil {
		return nil, err
	}
	if p.status != nil {
		if err := hostcheck.SameNetwork(p.status.PID, "weir doctor"); err != nil {
			return nil, err
		}
	}
	p.configure(load)
	p.report.Node = p.cfg.NodeName
	if p.status != nil {
		p.report.Node = p.status.Node
	}
	return p, nil
}

// examine examines this machine. The configuration need not be valid.
func examine(ctx context.Context, load loader, client *api.Client) (*Report, error) {
	p, err := admit(ctx, load, client)
	if err != nil {
		return nil, err
	}
	if p.status != nil {
		p.running()
		pid := p.status.PID
		if hostcheck.CommandLine(pid) == nil {
			pid = 0
		}
		p.takeHostFindings(hostcheck.CheckBeside(p.cfg, pid))
	} else {
		p.takeHostFindings(hostcheck.Check(p.cfg))
	}
	p.frontendsOf(ctx)
	p.look("firewall", p.firewall, "no rule is void for the packets to %d frontends", len(p.frontends))
	p.look("offloads", p.offloads, "none changes packets to %s before Weir has them", cmp.Or(strings.Join(p.attached(), ", "), "no interface"))
	p.queues()
	p.interrupts()
	p.hugePages()
	p.paths = newSurvey(p.attached(), p.frontends)
	p.paths.judge(p.report)
	p.sysctls()
	lans{p}.examine()
	p.clock()
	p.kubeProxy(ctx)
	p.report.sort()
	return p.report, nil
}

// shadow compares kube-proxy's endpoints with Weir's choice, and looks at nothing else.
func shadow(ctx context.Context, load loader, client *api.Client) (*Report, error) {
	p, err := admit(ctx, load, client)
	if err != nil {
		return nil, err
	}
	p.report.Findings = p.report.Findings[:0] // about another subject
	p.frontendsOf(ctx)
	p.kubeProxy(ctx)
	if len(p.report.KubeProxy) == 0 {
		p.add(Fault, "kube-proxy", "there is nothing to compare with").
			mend("run weir doctor in the host's network namespace, while kube-proxy runs")
	}
	p.report.sort()
	return p.report, nil
}

// ask asks the running Weir for its state.
func (p *patient) ask(ctx context.Context) error {
	s, err := p.client.Status(ctx)
	switch {
	case err == nil:
		p.status, p.report.Running = s, true
	case errors.Is(err, api.ErrNotRunning):
		p.add(Warning, "weir", "%v: the machine is examined for a start", err).mend("weir run --config FILE, or systemctl start weir")
	default:
		return err
	}
	return nil
}

// configure loads the configuration, and judges it.
func (p *patient) configure(load loader) {
	cfg, err := load(p.status)
	if cfg != nil {
		p.cfg = cfg
		p.look("configuration", func() { p.judge(err) }, "it is valid")
		return
	}
	p.add(Fault, "configuration", "%v", err)
	// The machine can still be examined, by defaults.
	p.cfg = config.Default()
}

// judge judges the configuration. err is that of loading it.
func (p *patient) judge(err error) {
	found := true // the interfaces of the next start
	for _, e := range config.Judge(p.cfg, err, config.SystemHost()) {
		found = found && !strings.HasPrefix(e.Path, "interfaces")
		where := e.Path
		if e.Origin != "" {
			where = e.Origin + ": " + e.Path
		}
		p.add(Fault, "configuration", "%s: %s", where, e.Msg).Mend = e.Mend
	}
	if found {
		p.nextInterfaces()
	}
}

// ofLevel are the verdicts on findings of weir check.
var ofLevel = map[hostcheck.Level]Verdict{hostcheck.OK: OK, hostcheck.Note: Warning, hostcheck.Wrong: Fault}

func (p *patient) takeHostFindings(list []hostcheck.Finding) {
	for _, f := range list {
		p.add(ofLevel[f.Level], f.Subject, "%s", f.Text).Mend = f.Mend
	}
}

// ofSeverity are the verdicts on problems of the running Weir.
var ofSeverity = map[problem.Severity]Verdict{problem.Error: Fault, problem.Warning: Warning, problem.Note: OK}

// running judges the running Weir by its status.
func (p *patient) running() {
	s := p.status
	f := p.add(OK, "weir", "process %d runs %s since %s", s.PID, s.Version, s.StartTime.Format("2006-01-02 15:04:05 MST"))
	switch c, _ := s.Condition(); c {
	case api.Unhealthy:
		f.Verdict, f.Fact = Fault, fmt.Sprintf("process %d is not healthy: %s", s.PID, s.Unhealthy)
		f.mend("systemctl restart weir, or delete the pod")
	case api.Starting:
		f.Verdict, f.Fact = Fault, "no full view of Services has come yet: no traffic is taken"
		f.mend("weir status --problems")
	case api.Draining:
		f.Verdict, f.Fact = Warning, "it is draining"
	}
	p.look("problems", p.problems, "the running Weir has none but notes")
}

// problems are those of the running Weir.
func (p *patient) problems() {
	s := p.status
	for i := range s.Problems {
		if pr := &s.Problems[i]; pr.Severity != problem.Note {
			p.add(ofSeverity[pr.Severity], pr.Object, "%s", pr.Line())
		}
	}
	if s.ProblemsLeftOut > 0 {
		p.add(Warning, "weir", "%d more problems", s.ProblemsLeftOut).mend("weir status --problems")
	}
}
