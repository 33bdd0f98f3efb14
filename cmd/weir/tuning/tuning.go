// Package tuning sets the Go runtime and the threads of a process up for packet
// workers beside a control plane: a worker must not wait for the other.
package tuning

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"

	"golang.org/x/sys/unix"
)

// Apply gives every worker a P beside those of the control plane:
// with fewer a locked worker loses its P to it for milliseconds. Little garbage
// is made, so collecting it can wait. GOMAXPROCS and GOGC in the environment
// win.
//
// All threads leave the workers' CPUs, and so will those that they make: the
// kernel would otherwise put a decoder of watch events beside a worker and give each half
// of the CPU. Workers pin themselves afterwards. Where the
// workers have all CPUs nothing can be left.
//
// warn is called for threads that could not be moved.
func Apply(warn func(error), workers int, cpus []int) *Undo {
	undo := &Undo{threads: func() {}}
	if os.Getenv("GOMAXPROCS") == "" {
		old := runtime.GOMAXPROCS(max(workers+3, runtime.GOMAXPROCS(0)))
		undo.runtime = append(undo.runtime, func() { runtime.GOMAXPROCS(old) })
	}
	if os.Getenv("GOGC") == "" {
		old := debug.SetGCPercent(gcPercent)
		undo.runtime = append(undo.runtime, func() { debug.SetGCPercent(old) })
	}
	all, err := allowed()
	if err == nil && len(cpus) > 0 {
		rest := all
		for _, n := range cpus {
			rest.Clear(n)
		}
		if rest.Count() > 0 {
			err = moveThreads(&rest)
			undo.threads = func() { _ = moveThreads(&all) }
		}
	}
	if err != nil {
		warn(fmt.Errorf("keep the control plane off the workers' CPUs: %w", err))
	}
	return undo
}

// Undo undoes an Apply.
type Undo struct {
	runtime []func()
	threads func()
}

// All undoes everything.
func (u *Undo) All() {
	for _, f := range u.runtime {
		f()
	}
	u.threads()
}

// Threads gives the threads their CPUs back, which pass to a program that is executed next. For the
// rest the runtime halts all threads: it would wait for a worker that is stalled.
func (u *Undo) Threads() { u.threads() }

// gcPercent is GOGC.
const gcPercent = 400

// Collect collects garbage now, and rarely from here on, as Apply has it: connections wait for
// what the caller is about to do, and would wait for a collection.
func Collect() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	runtime.GC()
}

// allowed are the CPUs that this process may use: those of its first thread.
func allowed() (unix.CPUSet, error) {
	var set unix.CPUSet
	err := unix.SchedGetaffinity(os.Getpid(), &set)
	return set, err
}

// moveThreads sets the CPUs of every thread there is. A new thread inherits from the thread
// that makes it, so a second look finds those that are made meanwhile.
func moveThreads(set *unix.CPUSet) error {
	moved := map[string]bool{}
	var errs []error
	for again := true; again; {
		again = false
		tasks, err := os.ReadDir("/proc/self/task")
		if err != nil {
			return err
		}
		for _, t := range tasks {
			if moved[t.Name()] {
				continue
			}
			moved[t.Name()], again = true, true
			tid, err := strconv.Atoi(t.Name())
			if err != nil {
				continue
			}
			if err := unix.SchedSetaffinity(tid, set); err != nil && !errors.Is(err, unix.ESRCH) {
				errs = append(errs, fmt.Errorf("thread %d: %w", tid, err))
			}
		}
	}
	return errors.Join(errs...)
}

// LastCPU is the highest CPU that this process may use, -1 if there is only a single CPU.
func LastCPU() int {
	set, err := allowed()
	if err != nil || set.Count() < 2 {
		return -1
	}
	last := -1
	for n := range 1 << 10 {
		if set.IsSet(n) {
			last = n
		}
	}
	return last
}
