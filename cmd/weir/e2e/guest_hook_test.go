package e2e

import (
	"slices"
	"strings"
	"testing"
)

// The programs of both hooks load, and forward established flows, from the release on that
// the table of kernel features in deploy/README.md names. Before it the packet loop forwards
// them at hook xdp, with a warning, and both `weir check` and `weir run` refuse hook tcx.
func TestGuestHooks(t *testing.T) {
	since := map[string]release{}
	for _, row := range kernelTable(t) {
		since[row.feature] = row.since
	}
	needs := map[string][]string{
		"xdp": {"BPF programs that share memory with a process", "driver features over netlink"},
		"tcx": {"BPF programs that share memory with a process", "TCX programs"},
		// Of a veth pair it is tcx where the kernel has that.
		"auto": {"BPF programs that share memory with a process", "TCX programs"},
	}
	for _, hook := range append(slices.Clone(hooks), "auto") {
		t.Run(hook, func(t *testing.T) {
			has, memory := true, runningRelease(t).has(since["BPF programs that share memory with a process"])
			for _, feature := range needs[hook] {
				from, ok := since[feature]
				if !ok {
					t.Fatalf("the table has no row for %q", feature)
				}
				has = has && runningRelease(t).has(from)
			}
			f := ownFixture(t, hookOptions(hook, toAttached))
			f.fromWire(t, hook)
			if hook == "tcx" && !has {
				f.refusesTCX(t)
				return
			}
			if stdout, stderr, exit := f.check(t); exit != 0 {
				t.Errorf("weir check: exit status %d\n%s%s", exit, stdout, stderr)
			}
			must(t, f.start())
			f.forwardsInKernel(t, has, memory)
		})
	}
}

// refusesTCX checks that a kernel without TCX programs is named before the start, and by it.
func (f *fixture) refusesTCX(t *testing.T) {
	t.Helper()
	const text = "interface eth0: hook: tcx needs TCX programs (Linux 6.6 has them)"
	if stdout, stderr, exit := f.check(t); exit != 1 || !strings.Contains(stderr, text) {
		t.Errorf("weir check: exit status %d, want 1 and %q\n%s%s", exit, text, stdout, stderr)
	}
	if err := f.start(); err == nil || !strings.Contains(err.Error(), "hook: tcx: ") {
		t.Errorf("weir run does not refuse hook tcx: %v", err)
	}
}

// hookOptions has the kernel forward established flows at a hook, in a Weir that is not
// started.
func hookOptions(hook string, list ...service) options {
	return options{
		services: list, stopped: true, extra: "flowCache: {mode: auto}\n",
		interfaces: "[{name: eth0, hook: " + hook + "}, {name: eth1, hook: " + hook + "}]",
	}
}

// forwardsInKernel checks that transfers pass, and whether the kernel forwards them. The
// warning is of a kernel that cannot share the flow table.
func (f *fixture) forwardsInKernel(t *testing.T, want, memory bool) {
	t.Helper()
	bothFamilies(t, func(t *testing.T, six bool) { f.checkTransfers(t, toAttached, six, 4<<20) })
	status, err := f.admin.Status(inTime(t, within))
	must(t, err)
	const text = "flow cache: the packet loop forwards packets of established flows"
	if warned := strings.Contains(strings.Join(status.Warnings, "\n"), text); warned == memory {
		t.Errorf("the warning %q: %v, want %v", text, warned, !memory)
	}
	for _, name := range []string{"eth0", "eth1"} {
		i := interfaceOf(status, name)
		if i == nil {
			t.Fatalf("%s is not attached", name)
		}
		if got := i.Repeated != nil && i.Repeated.Packets > 0; got != want {
			t.Errorf("%s: the kernel forwards packets: %v, want %v (hook %s: %s, repeated %+v)", name, got, want, i.Hook, i.HookReason, i.Repeated)
		}
	}
}
