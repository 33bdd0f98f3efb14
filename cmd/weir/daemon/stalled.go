package daemon

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime/pprof"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/cmd/weir/problem"
	"github.com/weirlb/weir/conntrack/statefile"
	"github.com/weirlb/weir/lb"
)

const (
	// lookForStalls is the time between two looks at the workers. Time in which this process
	// did not run, as in a stopped virtual machine, counts as one look.
	lookForStalls = time.Second
	// noticedAfter is the time without a round after which a worker counts as stuck.
	noticedAfter = 5
	// againAfter is the least time between two starts because of a stall.
	againAfter = 10 * time.Minute
	// stackTime bounds the time for the stack of a goroutine.
	stackTime = 5 * time.Second
)

// stalls follows workers that do not finish their rounds.
type stalls struct {
	looks map[int]int    // by worker: looks at which it was stuck
	where map[int]string // by worker: where it is
}

// watchWorkers reports stalled workers, and starts Weir again when a worker stays stalled.
func (d *Daemon) watchWorkers(ctx context.Context) error {
	s := stalls{map[int]int{}, map[int]string{}}
	tick := time.NewTicker(lookForStalls)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if d.lookAtWorkers(&s, d.lb.StalledWorkers()) {
			if err := d.startAgain(s.where); err != nil {
				d.log.Error("a worker is stalled, and Weir does not start again", "err", err)
			}
		}
	}
}

// lookAtWorkers reports whether it is time to start again.
func (d *Daemon) lookAtWorkers(s *stalls, stalled []lb.StalledWorker) (over bool) {
	var list []problem.Problem
	now := map[int]int{}
	for _, w := range stalled {
		n := s.looks[w.ID] + 1
		now[w.ID] = n
		if n == 1 {
			var stack string
			s.where[w.ID], stack = whereIs(w)
			d.log.Error("worker is stalled", "worker", w.ID, "cpu", w.CPU, "thread", w.Thread, "where", s.where[w.ID], "stack", stack)
		}
		list = append(list, problem.Problem{
			Kind: problem.WorkerStalled, Object: fmt.Sprint("Worker ", w.ID), Logged: true,
			Reason: fmt.Sprintf("has finished no round for %d s on CPU %d (thread %d): %s", n+noticedAfter, w.CPU, w.Thread, s.where[w.ID]),
		})
		limit := d.cfg.Workers.StallSeconds
		over = over || limit > 0 && n == max(1, limit-noticedAfter)
	}
	for id := range s.looks {
		if now[id] == 0 {
			d.log.Warn("worker goes on", "worker", id, "after", time.Duration(s.looks[id]+noticedAfter)*time.Second)
		}
	}
	s.looks = now
	d.problems.Replace(partWorkers, list...)
	return over
}

// startAgain executes Weir again, for which connections wait as after a crash. It returns why
// it does not.
func (d *Daemon) startAgain(where map[int]string) error {
	switch {
	case d.cfg.Death.HoldSeconds == 0:
		return fmt.Errorf("death.holdSeconds is 0: connections would end")
	case d.leaving.Load() || d.draining.Load() != nil || d.next.Load() != nil:
		return fmt.Errorf("it ends")
	}
	note := filepath.Join(filepath.Dir(d.cfg.Admin.Socket), "stalled")
	if text, err := statefile.Read(note, 64); err == nil {
		last, err := time.Parse(time.RFC3339, string(text))
		if since := time.Since(last); err == nil && since >= 0 && since < againAfter {
			return fmt.Errorf("it did so %s ago", since.Round(time.Second))
		}
	}
	if err := statefile.Replace(note, []byte(time.Now().Format(time.RFC3339))); err != nil {
		return fmt.Errorf("note the time, so that it is not done over and over: %w", err)
	}
	d.log.Error("a worker stays stalled: starting again", "workers", where, "holdSeconds", d.cfg.Death.HoldSeconds)
	err := d.again()
	d.log.Error("ending, for the service manager to start Weir again", "err", err)
	os.Exit(1)
	return nil
}

// whereIs describes a worker's place for a line, and has the stack of its goroutine.
func whereIs(w lb.StalledWorker) (where, stack string) {
	task := fmt.Sprintf("/proc/self/task/%d/", w.Thread)
	read := func(name string) string {
		b, err := os.ReadFile(task + name)
		if err != nil {
			return ""
		}
		return strings.TrimSpace(string(b))
	}
	state := read("stat")
	if i := strings.LastIndex(state, ") "); i >= 0 && len(state) > i+2 {
		state = state[i+2 : i+3]
	}
	call, _, _ := strings.Cut(read("syscall"), " ")
	where = "thread state " + state
	if n, err := strconv.Atoi(call); err == nil && n >= 0 {
		where += fmt.Sprintf(", in system call %d", n)
		if in := read("wchan"); in != "" && in != "0" {
			where += " (" + in + ")"
		}
	}
	if !preemptible(state, call) {
		return where, "not to be had: the thread cannot be interrupted"
	}
	stack = stackOf(w.ID)
	for line := range strings.Lines(stack) {
		if strings.Contains(line, "/lb/worker.") {
			return where + ", " + strings.TrimSpace(line), stack
		}
	}
	return where, stack
}

// preemptible reports whether the runtime can stop a thread in this state and system call. It
// waits for threads that make a call of the packet path (RawSyscall in lb/xsk), and would stop all
// others meanwhile.
func preemptible(state, call string) bool {
	if n, err := strconv.Atoi(call); err == nil && n >= 0 {
		return n != unix.SYS_SENDTO && n != unix.SYS_RECVFROM
	}
	return state == "R"
}

// stackOf is the stack of a worker's goroutine, a line for each function, the innermost first.
// If the runtime does not stop all threads in time, the kernel kills the process, which would
// otherwise stand still for good.
func stackOf(worker int) string {
	disarm, err := killIn(stackTime)
	if err != nil {
		return ""
	}
	defer disarm()
	var b bytes.Buffer
	if err := pprof.Lookup("goroutine").WriteTo(&b, 1); err != nil {
		return ""
	}
	label := fmt.Sprintf("# labels: {%q:%q}", lb.WorkerLabel, strconv.Itoa(worker))
	for block := range strings.SplitSeq(b.String(), "\n\n") {
		if !strings.Contains(block, label) || !strings.Contains(block, "worker.(*Worker).run+") {
			continue
		}
		var lines []string
		for line := range strings.Lines(block) {
			if f := strings.Fields(line); len(f) == 4 && f[0] == "#" && strings.HasPrefix(f[1], "0x") {
				function, _, _ := strings.Cut(f[2], "+")
				lines = append(lines, function+" "+f[3])
			}
		}
		return strings.Join(lines, "\n")
	}
	return ""
}

// killIn has the kernel kill the process after d, unless disarm is called.
func killIn(d time.Duration) (disarm func(), err error) {
	event := struct {
		value  uintptr
		signo  int32
		notify int32
		_      [48]byte
	}{signo: int32(unix.SIGKILL)}
	var id int32
	if _, _, errno := unix.Syscall(unix.SYS_TIMER_CREATE, unix.CLOCK_MONOTONIC, uintptr(unsafe.Pointer(&event)), uintptr(unsafe.Pointer(&id))); errno != 0 {
		return nil, fmt.Errorf("timer_create: %w", errno)
	}
	disarm = func() { _, _, _ = unix.Syscall(unix.SYS_TIMER_DELETE, uintptr(id), 0, 0) }
	end := [2]unix.Timespec{{}, unix.NsecToTimespec(int64(d))}
	if _, _, errno := unix.Syscall6(unix.SYS_TIMER_SETTIME, uintptr(id), 0, uintptr(unsafe.Pointer(&end)), 0, 0, 0); errno != 0 {
		disarm()
		return nil, fmt.Errorf("timer_settime: %w", errno)
	}
	return disarm, nil
}
