package e2e

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weirlb/weir/perf/netlab"
	"github.com/weirlb/weir/perf/netlab/labtest"
	"github.com/weirlb/weir/perf/netlab/patience"
	"github.com/weirlb/weir/perf/netlab/router"
	"github.com/weirlb/weir/perf/netlab/weirtest"
)

// startDemo starts `weirperf demo` as a user does, not inside any namespace, with
// temporary files in a directory of its own.
func startDemo(t *testing.T, args ...string) (cmd *exec.Cmd, temp string, out *bytes.Buffer) {
	t.Helper()
	labtest.Require(t)
	weir := weirtest.Binary(t)
	temp, out = t.TempDir(), &bytes.Buffer{}
	cmd = exec.Command(weirtest.Perf(t), append([]string{"demo"}, args...)...)
	cmd.Env = append(os.Environ(), "TMPDIR="+temp, "PATH="+filepath.Dir(weir)+":"+os.Getenv("PATH"))
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

// The demo passes while `weir capture` looks at the traffic.
func TestWireDemo(t *testing.T) {
	cmd, temp, out := startDemo(t) // as `make demo` runs it
	forwarded := captureDemo(t, temp, 2000, "service", "shop/web")
	refused := captureDemo(t, temp, 50, "tcp[tcpflags] & tcp-rst != 0")
	checkDemoCapture(t, forwarded)
	checkDemoReplies(t, refused)
	if err := cmd.Wait(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	if !strings.Contains(out.String(), "PASSED") || strings.Contains(out.String(), "\x1b") {
		t.Errorf("output:\n%s", out)
	}
	checkNothingLeft(t, cmd.Process.Pid, temp)
}

// The fleet's demo behind a router, with two of the events, and fewer connections than `make
// demo-fleet` has.
func TestWireDemoFleet(t *testing.T) {
	requireFRR(t)
	checkDemo(t, []string{"node1 is drained +[0-9]+ ms +ipip +40 +0 ", "node2 is killed .* ipip +40 +0 "},
		"fleet", "--events", "drain,kill", "--connections", "40")
}

// That on a LAN.
func TestWireDemoLAN(t *testing.T) {
	checkDemo(t, []string{
		"node1 is drained +[1-9][0-9]* +[0-9]+ ms +l2dsr +[0-9]+ +0 +[0-9]+ +0 +[0-9]+ ms +20 +0\n +nat +[0-9]+ +0 +[0-9]+ +0 ",
		"node1 ends its drain +[1-9]", "node2 is killed .* l2dsr .* 20 +0\n", "node2 starts again +0 ", "node3 is stopped .* l2dsr +[0-9]+ +0 ",
	}, "lan")
}

// checkDemo runs a demo, which passes and prints these rows.
func checkDemo(t *testing.T, rows []string, args ...string) {
	t.Helper()
	cmd, temp, out := startDemo(t, args...)
	if err := cmd.Wait(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	for _, row := range append(rows, "PASSED") {
		if !regexp.MustCompile(row).Match(out.Bytes()) {
			t.Errorf("no %q in:\n%s", row, out)
		}
	}
	checkNothingLeft(t, cmd.Process.Pid, temp)
}

// However the fleet's demo ends, no process of it is left, a router's neither.
func TestWireDemoFleetLeavesNoProcess(t *testing.T) {
	for _, signal := range []os.Signal{os.Interrupt, os.Kill} {
		t.Run(signal.String(), func(t *testing.T) {
			requireFRR(t)
			cmd, temp, out := startDemo(t, "fleet")
			untilProcesses(t, temp, func(list string) bool { return strings.Contains(list, "bgpd") })
			if err := cmd.Process.Signal(signal); err != nil {
				t.Fatal(err)
			}
			if err := cmd.Wait(); err == nil || signal == os.Interrupt && !strings.Contains(out.String(), "interrupted") {
				t.Errorf("%v\n%s", err, out)
			}
			untilProcesses(t, temp, func(list string) bool { return list == "" })
			t.Setenv("TMPDIR", temp)
			if err := netlab.Reap(); err != nil {
				t.Error(err)
			}
			checkNothingLeft(t, cmd.Process.Pid, temp)
		})
	}
}

// untilProcesses waits until the command lines of processes whose temporary files are in dir are
// as they should be.
func untilProcesses(t *testing.T, dir string, good func(list string) bool) {
	t.Helper()
	for deadline := time.Now().Add(patience.For(20 * time.Second)); ; {
		files, err := filepath.Glob("/proc/[0-9]*/environ")
		if err != nil {
			t.Fatal(err)
		}
		list := ""
		for _, f := range files {
			if env, err := os.ReadFile(f); err != nil || !bytes.Contains(env, []byte("TMPDIR="+dir)) {
				continue
			}
			if line, err := os.ReadFile(filepath.Join(filepath.Dir(f), "cmdline")); err == nil && len(line) > 0 {
				list += fmt.Sprintf("%s: %s\n", f, bytes.ReplaceAll(line, []byte{0}, []byte{' '}))
			}
		}
		if good(list) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("processes:\n%s", list)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func requireFRR(t *testing.T) {
	t.Helper()
	labtest.Require(t)
	if err := router.FRRAvailable(); err != nil {
		labtest.Skip(t, err)
	}
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
