package e2e

import (
	"bytes"
	"os/exec"
	"strings"
	"testing"
)

// check runs `weir check` on the edge node and returns what it prints.
func (f *fixture) check(t *testing.T, args ...string) (stdout, stderr string, exit int) {
	t.Helper()
	return f.inEdge(t, f.command(append([]string{"check", "--config", f.path("config.yaml")}, args...)...))
}

// inEdge runs a command on the edge node until it ends.
func (f *fixture) inEdge(t *testing.T, cmd *exec.Cmd) (stdout, stderr string, exit int) {
	t.Helper()
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	p, err := f.Edge.Edge.Start(cmd)
	must(t, err)
	exit = p.ExitCode()
	return out.String(), errs.String(), exit
}

// weir check looks at the network namespace that it runs in, and says so where Weir runs in another.
func TestWireCheckInAnotherNetworkNamespace(t *testing.T) {
	f := ownFixture(t, options{services: []service{toAttached}})
	const note = "runs in another network namespace than this command: run it there, by "
	for _, more := range [][]string{nil, {"--probe"}} {
		out, _ := f.command(append([]string{"check", "--config", f.path("config.yaml")}, more...)...).Output()
		if !strings.Contains(string(out), note) || !strings.Contains(string(out), " weir check\n") {
			t.Errorf("%s in another namespace:\n%s", more, out)
		}
	}
	if out, _, _ := f.check(t); strings.Contains(out, note) {
		t.Errorf("in its own:\n%s", out)
	}
}

// weir check refuses an interface that weir run refuses, and names the interface to attach
// instead.
func TestWireCheckRefusesABridge(t *testing.T) {
	f := ownFixture(t, options{services: []service{toAttached}, stopped: true})
	stdout, stderr, exit := f.check(t, "--interface", "cni0")
	if exit != 1 || !strings.Contains(stderr, "interface cni0: a bridge has no receive queues") || !strings.Contains(stderr, "(pod)") {
		t.Errorf("exit status %d, want 1: %s%s", exit, stdout, stderr)
	}
}
