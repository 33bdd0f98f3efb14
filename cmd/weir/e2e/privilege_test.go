package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/weirlb/weir/perf/netlab"
)

// A running Weir has the capabilities in use and no way to others, in every thread. With
// these it attaches to an interface that comes back, applies a reload, leaves for the next
// process, and removes everything in the end.
func TestWireRunningWeirHasNoOtherPrivileges(t *testing.T) {
	f := ownFixture(t, options{services: kinds, stopped: true})
	before, err := netlab.StateOf(f.Edge.Edge)
	must(t, err)
	must(t, f.start())
	f.checkPrivileges(t)

	link, err := f.Edge.Edge.Interface("eth1")
	must(t, err)
	index := f.indexOf(t, "eth1")
	must(t, f.Edge.Edge.Delete("eth1"))
	f.absent(t, "eth1")
	f.connectFabric(t, link.Attrs().HardwareAddr, 1)
	f.attachedTo(t, "eth1", f.indexOf(t, "eth1"))
	for _, s := range kinds {
		f.checkLoad(t, f.Client, s.at(httpPort, false), 5)
	}

	replace(t, f.path("config.yaml"), []byte(f.config()+"protectedPorts: [22]\n"))
	must(t, f.weir.Signal(syscall.SIGHUP))
	must(t, f.weir.Signal(syscall.SIGUSR2))
	f.ended(t)
	must(t, f.start())
	f.checkPrivileges(t)
	f.checkLoad(t, f.Client, toAttached.at(httpPort, true), 5)
	must(t, f.weir.Stop(within))
	after, err := netlab.StateOf(f.Edge.Edge)
	must(t, err)
	for _, line := range before.Diff(after) {
		// Routes and settings of the interface that was made anew are others.
		if !strings.Contains(line, fmt.Sprintf(" interface %d ", index)) && !strings.Contains(line, "eth1") && !strings.HasPrefix(line, "+ route") {
			t.Errorf("left behind: %s", line)
		}
	}
}

func (f *fixture) checkPrivileges(t *testing.T) {
	t.Helper()
	must(t, f.poll(func(ctx context.Context) error { // given up when traffic is taken
		s, err := f.admin.Status(ctx)
		if err == nil && (s.Privileges == nil || !s.Privileges.NoNewPrivs || len(s.Privileges.Capabilities) != 5) {
			err = fmt.Errorf("the status has %+v", s.Privileges)
		}
		return err
	}))
	tasks := fmt.Sprintf("/proc/%d/task", f.weir.Cmd.Process.Pid)
	threads, err := os.ReadDir(tasks)
	must(t, err)
	for _, thread := range threads {
		b, err := os.ReadFile(filepath.Join(tasks, thread.Name(), "status"))
		if os.IsNotExist(err) {
			continue // it has ended
		}
		must(t, err)
		// CAP_NET_ADMIN, CAP_NET_RAW, CAP_IPC_LOCK, CAP_PERFMON, CAP_BPF.
		const set = "000000c000007000"
		for _, want := range []string{
			"CapInh:\t0000000000000000", "CapPrm:\t" + set, "CapEff:\t" + set, "CapBnd:\t" + set, "CapAmb:\t0000000000000000",
			"NoNewPrivs:\t1", "Seccomp:\t2",
		} {
			if !strings.Contains(string(b), want+"\n") {
				t.Errorf("thread %s has not %q:\n%s", thread.Name(), want, b)
			}
		}
	}
}
