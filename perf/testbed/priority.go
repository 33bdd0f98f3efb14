package testbed

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/perf/netlab"
)

// placeNode pins the processes that are started on the node: a process has the CPUs of the
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
	return first(b.Node.Thread())
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

// first gives a thread, and the processes that it starts, precedence over other
// users of its CPU: other programs of the machine must not count as the measured system.
// Every part of that system has the same precedence, so that the parts share the core as
// they would alone.
func first(tid int) error {
	if err := unix.Setpriority(unix.PRIO_PROCESS, tid, -20); err != nil {
		return fmt.Errorf("priority of thread %d: %w", tid, err)
	}
	return nil
}

// firstSession does the same for the session that a process leads: where the
// scheduler weighs sessions, priorities count only inside of a session.
func firstSession(pid int) error {
	group := fmt.Sprintf("/proc/%d/autogroup", pid)
	if err := os.WriteFile(group, []byte("-20"), 0); err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("priority of the session of process %d: %w", pid, err)
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
	return p, firstSession(cmd.Process.Pid)
}

func pin(tid, cpu int) error {
	var set unix.CPUSet
	set.Set(cpu)
	return unix.SchedSetaffinity(tid, &set)
}

// placeSelf gives this process, in which loads are made, the load core and
// precedence there, and returns a function that undoes it. A session that it leads gets precedence too:
// its threads compete there with others. See LeadSession.
func (b *Bed) placeSelf() (restore func() error, err error) {
	var was unix.CPUSet
	if err := unix.SchedGetaffinity(0, &was); err != nil {
		return nil, err
	}
	restore = func() error {
		return eachThread(func(tid int) error {
			return errors.Join(unix.SchedSetaffinity(tid, &was), unix.Setpriority(unix.PRIO_PROCESS, tid, 0))
		})
	}
	if leads() {
		err = firstSession(os.Getpid())
	}
	if err == nil {
		err = eachThread(func(tid int) error { return errors.Join(pin(tid, b.LoadCore), first(tid)) })
	}
	if err != nil {
		return nil, errors.Join(err, restore())
	}
	return restore, nil
}

// eachThread calls f for every thread of this process. A new thread inherits from the
// thread that makes it, so a second look finds those that are made meanwhile.
func eachThread(f func(tid int) error) error {
	seen := map[string]bool{}
	for again := true; again; {
		again = false
		tasks, err := os.ReadDir("/proc/self/task")
		if err != nil {
			return err
		}
		for _, t := range tasks {
			if seen[t.Name()] {
				continue
			}
			seen[t.Name()], again = true, true
			tid, err := strconv.Atoi(t.Name())
			if err != nil {
				continue
			}
			if err := f(tid); err != nil && !errors.Is(err, unix.ESRCH) {
				return fmt.Errorf("place thread %d: %w", tid, err)
			}
		}
	}
	return nil
}

// realTime lets a thread run before all ordinary ones: a receiver that is kept
// from running by the generator loses packets that the node has sent.
func realTime(tid int) error {
	attr := &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: 1}
	if err := unix.SchedSetAttr(tid, attr, 0); err != nil {
		return fmt.Errorf("real-time priority for thread %d: %w", tid, err)
	}
	return nil
}
