package e2e

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weirlb/weir/perf/netlab"
	"github.com/weirlb/weir/perf/netlab/labtest"
	"github.com/weirlb/weir/perf/netlab/weirtest"
)

// startDemo starts `weir demo` as a user does, not inside any namespace, with
// temporary files in a directory of its own.
func startDemo(t *testing.T, args ...string) (cmd *exec.Cmd, temp string, out *bytes.Buffer) {
	t.Helper()
	labtest.Require(t)
	file := weirtest.Binary(t)
	temp, out = t.TempDir(), &bytes.Buffer{}
	cmd = exec.Command(file, append([]string{"demo"}, args...)...)
	cmd.Env = append(os.Environ(), "TMPDIR="+temp)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	return cmd, temp, out
}

func TestWireDemo(t *testing.T) {
	cmd, temp, out := startDemo(t) // as `make demo` runs it
	if err := cmd.Wait(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	if !strings.Contains(out.String(), "PASSED") || strings.Contains(out.String(), "\x1b") {
		t.Errorf("output:\n%s", out)
	}
	checkNothingLeft(t, cmd.Process.Pid, temp)
}

// Ctrl-C removes everything.
func TestWireDemoInterrupted(t *testing.T) {
	cmd, temp, out := startDemo(t)
	waitForLab(t, cmd.Process.Pid)
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err == nil || !strings.Contains(out.String(), "interrupted") {
		t.Errorf("%v\n%s", err, out)
	}
	checkNothingLeft(t, cmd.Process.Pid, temp)
}

// A demo that is killed leaves files and names only, which the next lab
// removes, and no process.
func TestWireDemoKilled(t *testing.T) {
	cmd, temp, _ := startDemo(t)
	waitForLab(t, cmd.Process.Pid)
	child := childOf(t, cmd.Process.Pid)
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	cmd.Wait()
	deadline := time.Now().Add(within)
	for syscall.Kill(child, 0) == nil {
		if time.Now().After(deadline) {
			t.Fatalf("weir run (pid %d) outlives the demo", child)
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Setenv("TMPDIR", temp)
	if err := netlab.Reap(); err != nil {
		t.Error(err)
	}
	checkNothingLeft(t, cmd.Process.Pid, temp)
}

// labFiles are the names in dir that belong to a process's labs.
func labFiles(t *testing.T, pid int, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil
	}
	var out []string
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), "weir-lab-") && strings.Contains(e.Name(), fmt.Sprintf("-%d-", pid)) {
			out = append(out, e.Name())
		}
	}
	return out
}

func checkNothingLeft(t *testing.T, pid int, temp string) {
	t.Helper()
	for _, dir := range []string{temp, "/run/netns"} {
		if left := labFiles(t, pid, dir); len(left) > 0 {
			t.Errorf("left in %s: %v", dir, left)
		}
	}
}

// waitForLab waits until the demo's weir run has started.
func waitForLab(t *testing.T, pid int) {
	t.Helper()
	deadline := time.Now().Add(within)
	for childOf(t, pid) == 0 {
		if time.Now().After(deadline) {
			t.Fatal("the demo has not started weir run")
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// childOf is a child of the process, 0 for none.
func childOf(t *testing.T, pid int) int {
	t.Helper()
	tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, task := range tasks {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/children", pid, task.Name()))
		if err != nil {
			continue // that thread has ended
		}
		var child int
		if _, err := fmt.Sscan(string(b), &child); err == nil {
			return child
		}
	}
	return 0
}
