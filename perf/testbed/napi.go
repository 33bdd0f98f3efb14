package testbed

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/perf/netlab"
)

// napiThread is the kernel thread that receives for an interface.
type napiThread struct {
	link string
	pid  int
	cpu  int
}

// placeNAPI gives interfaces threads that receive, and each thread its CPU.
func (b *Bed) placeNAPI() error {
	places := []struct {
		n      *netlab.Namespace
		link   string
		onNode bool
	}{
		{b.Node, NodeFront, true}, {b.Node, NodeBack, true},
		{b.Client, ClientLink, false}, {b.Backend, BackendLink, false},
	}
	for _, p := range places {
		if !p.onNode && b.Setting == Default {
			continue
		}
		pid, err := startNAPIThread(p.n, p.link)
		if err != nil {
			return err
		}
		t := napiThread{p.link, pid, b.LBCore}
		if p.onNode {
			err = First(pid)
		} else {
			t.cpu = b.LoadCore
			err = realTime(pid)
		}
		if err != nil {
			return err
		}
		if err := pin(pid, t.cpu); err != nil {
			return fmt.Errorf("pin the thread that receives for %s: %w", p.link, err)
		}
		b.napi = append(b.napi, t)
	}
	return nil
}

// startNAPIThread switches an interface to receiving in a thread. A veth has
// something to receive with only while generic receive offload is on or an XDP
// program is attached.
func startNAPIThread(n *netlab.Namespace, link string) (int, error) {
	before, err := napiThreads(link)
	if err != nil {
		return 0, err
	}
	err = n.SetOffloads(link, map[string]bool{"rx-gro": true})
	if err == nil {
		err = n.Inside(func() error {
			return os.WriteFile(filepath.Join("/sys/class/net", link, "threaded"), []byte("1"), 0)
		})
	}
	if err != nil {
		return 0, fmt.Errorf("receive for %s in a thread: %w", link, err)
	}
	for deadline := time.Now().Add(time.Second); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		now, err := napiThreads(link)
		if err != nil {
			return 0, err
		}
		for pid := range now {
			if !before[pid] {
				return pid, nil
			}
		}
	}
	return 0, fmt.Errorf("receive for %s in a thread: no thread has appeared", link)
}

// napiThreads are the threads that receive for interfaces of this name, in
// whatever namespace.
func napiThreads(link string) (map[int]bool, error) {
	found := map[int]bool{}
	procs, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	for _, p := range procs {
		pid, err := strconv.Atoi(p.Name())
		if err != nil {
			continue
		}
		name, err := os.ReadFile(filepath.Join("/proc", p.Name(), "comm"))
		if err == nil && strings.HasPrefix(string(name), "napi/"+link+"-") {
			found[pid] = true
		}
	}
	return found, nil
}

// placeNode pins what is started on the node: a process has the CPUs of the
// thread that started it.
func (b *Bed) placeNode() error {
	for _, p := range []struct {
		n   *netlab.Namespace
		cpu int
	}{{b.Node, b.LBCore}, {b.Client, b.LoadCore}, {b.Backend, b.LoadCore}} {
		if err := pin(p.n.Thread(), p.cpu); err != nil {
			return fmt.Errorf("pin namespace %s: %w", p.n.Name(), err)
		}
	}
	return nil
}

// NodeThreads are the kernel threads that receive on the node.
func (b *Bed) NodeThreads() []int {
	var pids []int
	for _, t := range b.napi {
		if t.cpu == b.LBCore {
			pids = append(pids, t.pid)
		}
	}
	return pids
}

// First gives a process precedence over other users of its CPU: what happens to
// run on the machine must not count as the measured system's. Every part of
// that system has the same, so that it shares its core as it would alone.
// A process must lead a session of its own: the kernel weighs sessions.
func First(pid int) error {
	if err := unix.Setpriority(unix.PRIO_PROCESS, pid, -20); err != nil {
		return fmt.Errorf("priority of process %d: %w", pid, err)
	}
	group := fmt.Sprintf("/proc/%d/autogroup", pid)
	if err := os.WriteFile(group, []byte("-20"), 0); err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("priority of process %d: %w", pid, err)
	}
	return nil
}

// Start starts a process on the node, on the LB core and before all others.
func (b *Bed) Start(cmd *exec.Cmd) (*netlab.Process, error) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setsid = true
	p, err := b.Node.Start(cmd)
	if err != nil {
		return nil, err
	}
	return p, First(cmd.Process.Pid)
}

func pin(tid, cpu int) error {
	var set unix.CPUSet
	set.Set(cpu)
	return unix.SchedSetaffinity(tid, &set)
}

// realTime lets a thread run before all ordinary ones.
func realTime(tid int) error {
	attr := &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: 1}
	if err := unix.SchedSetAttr(tid, attr, 0); err != nil {
		return fmt.Errorf("real-time priority for thread %d: %w", tid, err)
	}
	return nil
}
