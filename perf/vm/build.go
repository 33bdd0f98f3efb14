package vm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/weirlb/weir/perf/vm/job"
)

// build builds weir, the first process and the test binaries of the cases, all static.
func (m *matrix) build(ctx context.Context, cases []Case) error {
	m.Log("build weir and the tests")
	err := errors.Join(
		m.compile(ctx, "weir", "build", "./cmd/weir"),
		m.compile(ctx, "guest", "build", "./perf/vm/guest"))
	for _, c := range cases {
		err = errors.Join(err, m.compile(ctx, c.binary(), "test", "-c", "./"+c.Package))
		for _, s := range c.Scripts {
			err = errors.Join(err, m.script(ctx, s))
		}
	}
	return err
}

// script runs a script of a case, once: variable=script.
func (m *matrix) script(ctx context.Context, text string) error {
	if m.programs[text] != "" {
		return nil
	}
	variable, file, _ := strings.Cut(text, "=")
	m.Log("%s", file)
	cmd := exec.CommandContext(ctx, "sh", file)
	cmd.Dir = m.Root
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("%s: %w\n%s", file, err, errs.String())
	}
	m.programs[text] = variable + "=" + strings.TrimSpace(string(out))
	return nil
}

// compile runs a command of go for a package, once. The binary has no debug information:
// a virtual machine holds it in memory.
func (m *matrix) compile(ctx context.Context, name string, command ...string) error {
	if m.built[name] != "" {
		return nil
	}
	file := filepath.Join(m.scratch, name)
	last := len(command) - 1
	args := append(append([]string{}, command[:last]...), "-ldflags=-s -w", "-o", file, command[last])
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = m.Root
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w\n%s", name, err, out)
	}
	m.built[name] = file
	return nil
}

// initramfs writes the first file system of a boot.
func (m *matrix) initramfs(file string, k *Kernel, j *job.Job, group []Case) error {
	programs := map[string]string{"weir": m.built["weir"], "guest": m.built["guest"]}
	for _, c := range group {
		programs[c.binary()] = m.built[c.binary()]
	}
	return k.jobInitramfs(file, j, programs)
}

// jobInitramfs writes the first file system of a boot that does a job, with programs by their names.
func (k *Kernel) jobInitramfs(file string, j *job.Job, programs map[string]string) error {
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	defer f.Close()
	a := newArchive(f)
	a.device("dev/console", 5, 1)
	for _, name := range slices.Sorted(maps.Keys(programs)) {
		a.file("vm/"+name, programs[name])
	}
	if err := k.addModules(a, bootModules); err != nil {
		return err
	}
	text, err := json.Marshal(j)
	if err != nil {
		return err
	}
	a.data("vm/job.json", text)
	return errors.Join(a.close(), f.Close())
}

// once boots a virtual machine for the cases. current becomes the name of the case that
// began last.
func (m *matrix) once(ctx context.Context, k *Kernel, group []Case, dir string, current *string) (time.Duration, error) {
	if err := errors.Join(os.RemoveAll(dir), os.MkdirAll(dir, 0o755)); err != nil {
		return 0, err
	}
	if group[0].Host {
		return 0, m.onHost(ctx, k, group, dir, current)
	}
	nics, err := nicsOf(group[0].NICs)
	if err != nil {
		return 0, err
	}
	if nics.close != nil {
		defer nics.close()
	}
	initrd := filepath.Join(m.scratch, "initrd")
	j := m.jobOf(k, group, nics.env)
	if err := m.initramfs(initrd, k, j, group); err != nil {
		return 0, err
	}
	defer os.Remove(initrd)
	vm := &machine{
		limit:  limitOf(j),
		kernel: k, initrd: initrd, out: dir, args: nics.args, prefix: nics.prefix, cpus: m.CPUs, memory: 2560, kvm: m.kvm,
		began: func(name string) {
			*current = name
			m.Log("%s: %s begins", k.Version, name)
		},
	}
	return vm.run(ctx)
}
