package e2e

import (
	"strings"
	"syscall"
	"testing"

	"github.com/weirlb/weir/perf/netlab"
)

// A restart takes over a configuration with fewer interfaces: the next process gives the
// others back to the kernel, as a stop would have done.
func TestWireRestartWithoutAnInterface(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*fixture) error{
		"restart": func(f *fixture) error { return f.weir.Signal(syscall.SIGUSR2) },
		"kill":    func(f *fixture) error { return f.weir.Kill() },
	} {
		t.Run(name, func(t *testing.T) {
			f := ownFixture(t, options{services: []service{toPod}, stopped: true,
				interfaces: "[{name: eth0}, {name: eth1, mode: generic}]"})
			before := stateOf(t, f)
			if err := f.start(); err != nil {
				t.Fatal(err)
			}
			if err := end(f); err != nil {
				t.Fatal(err)
			}
			<-f.weir.Done()
			f.opts.interfaces = "[{name: eth0}]"
			if err := f.configure(); err != nil {
				t.Fatal(err)
			}
			if err := f.start(); err != nil {
				t.Fatal(err)
			}
			for _, line := range before.Diff(stateOf(t, f)) {
				if strings.Contains(line, "eth1") {
					t.Errorf("with eth0 alone: %s", line)
				}
			}
			if err := f.weir.Stop(within); err != nil {
				t.Fatal(err)
			}
			if left := before.Diff(stateOf(t, f)); len(left) > 0 {
				t.Errorf("left behind:\n%s", strings.Join(left, "\n"))
			}
		})
	}
}

func stateOf(t *testing.T, f *fixture) netlab.State {
	t.Helper()
	s, err := netlab.StateOf(f.Edge.Edge)
	if err != nil {
		t.Fatal(err)
	}
	return s
}
