package vm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/weirlb/weir/perf/netlab/patience"
	"github.com/weirlb/weir/perf/vm/job"
)

// Options select a part of the matrix.
type Options struct {
	Root    string   // of the module
	Kernels []string // names; nil: Kernels
	Cases   []string // patterns of names; nil: all
	Short   bool     // the short form: fewer kernels and cases
	CPUs    int      // of each virtual machine; 0: 2
	Files   string   // folder for the files of failed cases
	Log     func(format string, args ...any)
}

// matrix is a run.
type matrix struct {
	Options
	apt     *apt
	scratch string
	kvm     bool
	// revision is that of the source.
	revision string
	built    map[string]string // binaries, by their names in the initramfs
	programs map[string]string // variables with programs, by Case.Scripts
}

// Run runs a part of the matrix. An error means that it could not be run as a whole; the
// report, if it is not nil, has the cases that ended. A failed case is in the report.
func Run(ctx context.Context, o Options) (*Report, error) {
	cases, err := o.complete()
	if err != nil {
		return nil, err
	}
	dir, err := cacheFolder()
	if err != nil {
		return nil, err
	}
	m := &matrix{Options: o, apt: &apt{dir: dir, log: o.Log}, kvm: hasKVM(), built: map[string]string{}, programs: map[string]string{}}
	if m.scratch, err = os.MkdirTemp("", "weir-vm-"); err != nil {
		return nil, err
	}
	defer os.RemoveAll(m.scratch)
	if err := m.apt.installEmulator(ctx); err != nil {
		return nil, err
	}
	if out, err := exec.CommandContext(ctx, "git", "-C", m.Root, "describe", "--always", "--dirty").Output(); err == nil {
		m.revision = strings.TrimSpace(string(out))
	}
	if err := m.build(ctx, cases); err != nil {
		return nil, err
	}
	r := m.report(ctx)
	for _, name := range m.Kernels {
		k, err := m.apt.fetch(ctx, name)
		if err != nil {
			return r, err
		}
		on := OnKernel{Name: name, Version: k.Version}
		for _, group := range boots(cases) {
			if m.Short && group[0].Host && name != Newest {
				continue // it takes more than a minute
			}
			m.boot(ctx, k, &on, group)
		}
		if len(on.Cases) > 0 {
			r.Kernels = append(r.Kernels, on)
		}
	}
	return r, ctx.Err()
}

// complete fills in defaults and returns the cases.
func (o *Options) complete() ([]Case, error) {
	all := Cases
	if o.Short {
		all = slices.DeleteFunc(slices.Clone(all), func(c Case) bool { return !c.Short })
	}
	if len(o.Kernels) == 0 {
		o.Kernels = Kernels
		if o.Short {
			o.Kernels = ShortKernels
		}
	}
	if o.CPUs == 0 {
		o.CPUs = min(2, runtime.NumCPU())
	}
	return selectCases(all, o.Cases)
}

func (m *matrix) report(ctx context.Context) *Report {
	r := &Report{CPUs: m.CPUs, Accelerator: "emulation (tcg)"}
	if m.kvm {
		r.Accelerator = "KVM"
	}
	if out, err := exec.CommandContext(ctx, emulator, "--version").Output(); err == nil {
		r.Emulator, _, _ = strings.Cut(string(out), "\n")
		r.Emulator, _, _ = strings.Cut(r.Emulator, " (")
	}
	return r
}

// boot runs cases that need the same NICs. After a hang, or a crash of the kernel, the cases
// that are left get another boot.
func (m *matrix) boot(ctx context.Context, k *Kernel, on *OnKernel, group []Case) {
	for len(group) > 0 && ctx.Err() == nil {
		dir := filepath.Join(m.Files, k.Name+"-"+group[0].Name)
		current := ""
		boot, err := m.once(ctx, k, group, dir, &current)
		if on.BootSeconds == 0 {
			on.BootSeconds = boot.Seconds()
		}
		failed := false
		for len(group) > 0 {
			o, ended := m.outcome(k, group[0], dir)
			if !ended && ctx.Err() != nil {
				return // cut short: the case has no outcome
			}
			if !ended {
				if err == nil {
					err = errors.New("it has no result")
				}
				o.Outcome, o.Why = Fail, err.Error()
			}
			m.Log("%s: %s: %s in %.0f s (%d passed, %d failed, %d skipped) %s", k.Version, o.Case, o.Outcome,
				o.Seconds, o.Tests.Passed, o.Tests.Failed, o.Tests.Skipped, o.Why)
			for _, f := range o.Tests.Failures {
				m.Log("  %s", f)
			}
			failed = failed || o.Outcome == Fail
			on.Cases = append(on.Cases, o)
			group = group[1:]
			// The case that was running has failed, and those behind it are yet to run. Where
			// none began, another boot would not end otherwise.
			if !ended && current != "" {
				break
			}
		}
		if !failed {
			_ = os.RemoveAll(dir)
		}
	}
}

// outcome reads the result of a case; false: there is none.
func (m *matrix) outcome(k *Kernel, c Case, dir string) (Outcome, bool) {
	o := Outcome{Case: c.Name, Revision: m.revision, Files: dir}
	for _, omitted := range c.Omit {
		o.Omitted = append(o.Omitted, omitted.Test+": "+omitted.Why)
	}
	if log, err := os.Open(filepath.Join(dir, c.Name+".log")); err == nil {
		defer log.Close()
		if o.Tests, err = parseTests(log); err != nil {
			o.Why = err.Error()
		}
	}
	text, err := os.ReadFile(filepath.Join(dir, c.Name+".json"))
	var r job.Result
	if err != nil || json.Unmarshal(text, &r) != nil {
		return o, false
	}
	o.Seconds = r.Seconds
	o.decide(&c, r.Exit, r.TimedOut, r.Kernel, k.Version)
	return o, true
}

// emulated is how many times slower a kernel is without KVM.
const emulated = 10

// slowest bounds the factor of the waits inside: a test that waits in vain takes minutes.
const slowest = 15

// jobOf is the job of a boot.
func (m *matrix) jobOf(k *Kernel, group []Case, env []string) *job.Job {
	j := &job.Job{Modules: k.Modules, Load: []string{"tun", "veth"}, Slow: patience.Factor()}
	// The measurement inside knows neither how slow system calls are nor this machine's load.
	if !m.kvm {
		j.Slow *= emulated
	}
	j.Env = append(env, "WEIR_BINARY=/vm/weir", fmt.Sprintf("%s=%.1f", patience.Variable, min(slowest, j.Slow)))
	for _, c := range group {
		j.Load = append(j.Load, c.Load...)
		env := slices.Clone(c.Env)
		for _, s := range c.Scripts {
			env = append(env, m.programs[s])
		}
		j.Cases = append(j.Cases, job.Case{
			Name: c.Name, Dir: filepath.Join(m.Root, c.Package), Command: c.command(), Env: env, Seconds: c.Seconds,
		})
	}
	return j
}

// bootWithin is more than a boot takes on a quiet machine without emulation, the end of a case
// after the time is up included.
const bootWithin = 30 * time.Second

// limitOf is the time after which a virtual machine with a job is killed.
func limitOf(j *job.Job) time.Duration {
	seconds := bootWithin.Seconds()
	for _, c := range j.Cases {
		seconds += c.Seconds + 10
	}
	return time.Duration(seconds * max(j.Slow, 1) * float64(time.Second))
}
