// Package cpu accounts for the processor time of a CPU.
//
// The kernel's own account of a CPU (/proc/stat) has everything that ran there, in ticks.
// The account of a thread (schedstat) is exact, and includes interrupts and softirqs during
// the thread's time. If the CPU's account exceeds the sum over all threads of the measured
// system, something else ran there.
package cpu

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// userHz is the unit of /proc/stat, fixed at 100 for programs.
const userHz = 100

// Core is the time of a CPU since boot.
type Core struct {
	User, Nice, System, Idle, IOWait, IRQ, SoftIRQ, Steal time.Duration
}

// Busy is the time in which the CPU worked: user, system, interrupts and
// softirqs.
func (c Core) Busy() time.Duration { return c.User + c.Nice + c.System + c.IRQ + c.SoftIRQ }

// Sub is the time since before.
func (c Core) Sub(b Core) Core {
	return Core{c.User - b.User, c.Nice - b.Nice, c.System - b.System, c.Idle - b.Idle,
		c.IOWait - b.IOWait, c.IRQ - b.IRQ, c.SoftIRQ - b.SoftIRQ, c.Steal - b.Steal}
}

// ReadCore reads the account of a CPU.
func ReadCore(n int) (Core, error) {
	b, err := os.ReadFile("/proc/stat")
	if err != nil {
		return Core{}, err
	}
	return parseCore(b, n)
}

func parseCore(stat []byte, n int) (Core, error) {
	name := fmt.Sprintf("cpu%d", n)
	for s := bufio.NewScanner(bytes.NewReader(stat)); s.Scan(); {
		f := strings.Fields(s.Text())
		if len(f) < 9 || f[0] != name {
			continue
		}
		var v [8]time.Duration
		for i := range v {
			ticks, err := strconv.ParseUint(f[i+1], 10, 64)
			if err != nil {
				return Core{}, fmt.Errorf("/proc/stat: %q: %w", s.Text(), err)
			}
			v[i] = time.Duration(ticks) * time.Second / userHz
		}
		return Core{v[0], v[1], v[2], v[3], v[4], v[5], v[6], v[7]}, nil
	}
	return Core{}, fmt.Errorf("/proc/stat: no %s", name)
}

// Threads are the times that threads have run, by thread id.
type Threads map[int]time.Duration

// ReadThreads reads the times of all threads of processes. Threads that have ended are left
// out.
func ReadThreads(pids ...int) (Threads, error) {
	t := Threads{}
	for _, pid := range pids {
		dir := filepath.Join("/proc", strconv.Itoa(pid), "task")
		tasks, err := os.ReadDir(dir)
		if err != nil {
			continue
		}
		for _, task := range tasks {
			tid, err := strconv.Atoi(task.Name())
			if err != nil {
				continue
			}
			if err := t.read(tid, filepath.Join(dir, task.Name(), "schedstat")); err != nil {
				return nil, err
			}
		}
	}
	return t, nil
}

func (t Threads) read(tid int, path string) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil // it has ended
	}
	ran, err := parseSchedstat(b)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	t[tid] = ran
	return nil
}

// parseSchedstat takes the first of three figures: ns on the CPU.
func parseSchedstat(b []byte) (time.Duration, error) {
	f := strings.Fields(string(b))
	if len(f) < 1 {
		return 0, fmt.Errorf("it is empty")
	}
	ns, err := strconv.ParseInt(f[0], 10, 64)
	return time.Duration(ns), err
}

// Since is how long the threads have run since before, those that were not
// there then included.
func (t Threads) Since(before Threads) time.Duration {
	var sum time.Duration
	for tid, ran := range t {
		sum += ran - before[tid]
	}
	return sum
}

// KernelThreads are those threads of the kernel that ran last on a CPU and may
// run nowhere else: the softirq, RCU and work queue threads.
func KernelThreads(n int) ([]int, error) {
	procs, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, p := range procs {
		pid, err := strconv.Atoi(p.Name())
		if err != nil {
			continue
		}
		b, err := os.ReadFile(filepath.Join("/proc", p.Name(), "stat"))
		if err != nil {
			continue
		}
		if kthread, last := parseStat(b); kthread && last == n {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// parseStat says whether a process is a thread of the kernel, and on which CPU
// it ran last (proc_pid_stat(5), fields 9 and 39).
func parseStat(b []byte) (kthread bool, last int) {
	const kernelThread = 0x00200000 // PF_KTHREAD
	// The name may contain parentheses.
	f := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	if len(f) < 37 {
		return false, -1
	}
	flags, err := strconv.ParseUint(f[6], 10, 64)
	if err != nil {
		return false, -1
	}
	last, err = strconv.Atoi(f[36])
	if err != nil {
		return false, -1
	}
	return flags&kernelThread != 0, last
}
