package process

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime/pprof"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/cmd/weir/config"
	"github.com/weirlb/weir/cmd/weir/problem"
	"github.com/weirlb/weir/cmd/weir/sdnotify"
	"github.com/weirlb/weir/cmd/weir/tuning"
	"github.com/weirlb/weir/conntrack/statefile"
	"github.com/weirlb/weir/lb"
	"github.com/weirlb/weir/lb/aligned"
)

const (
	// lookForStalls is the time between two looks at the workers. Time in which this process
	// did not run, as in a stopped virtual machine, counts as one look.
	lookForStalls = time.Second
	// noticedAfter is the time without a round after which a worker counts as stuck.
	noticedAfter = 5
	// againAfter is the least time between two starts because of a stall.
	againAfter = 10 * time.Minute
	// stoppedFor is the time between two looks after which this process itself did not run:
	// the signs of life of the workers are as old.
	stoppedFor = 3 * lookForStalls
	// retryLooks is the number of looks between two attempts to start again.
	retryLooks = 60
)

// stalls follows workers that do not finish their rounds.
type stalls struct {
	looks map[int]int    // by worker: looks at which it was stuck
	where map[int]string // by worker: where it is
	first map[int]thread // by worker: its thread at the first of these looks
}

// partWorkers is the part of the problems of stalled workers.
const partWorkers = "workers"

// Workers watches the workers of a packet path.
type Workers struct {
	Configuration *config.Configuration
	PacketPath    *lb.LB
	Ending        *Ending
	Problems      *problem.Registry
	Notify        *sdnotify.Notifier
	Tuned         *tuning.Undo // is left to the program that is executed
	Log           *slog.Logger
}

// Watch reports stalled workers, and starts Weir again when a worker stays stalled.
func (v *Workers) Watch(ctx context.Context) error {
	s := stalls{map[int]int{}, map[int]string{}, map[int]thread{}}
	tick := aligned.NewTicker(lookForStalls)
	defer tick.Stop()
	for last := time.Now(); ; {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		apart := time.Since(last)
		last = time.Now()
		if apart > stoppedFor {
			continue
		}
		stalled := v.PacketPath.StalledWorkers()
		if v.lookAtWorkers(&s, stalled) {
			err := s.endless(stalled)
			if err == nil {
				err = v.startAgain(s.where)
			}
			if err != nil {
				v.Log.Error("a worker is stalled, and Weir does not start again", "err", err)
			}
		}
	}
}

// lookAtWorkers reports whether it is time to start again.
func (v *Workers) lookAtWorkers(s *stalls, stalled []lb.StalledWorker) (over bool) {
	var list []problem.Problem
	now := map[int]int{}
	threads := map[int]thread{}
	for _, w := range stalled {
		threads[w.ID] = threadOf(w)
	}
	for _, w := range stalled {
		n := s.looks[w.ID] + 1
		now[w.ID] = n
		if n == 1 {
			var stack string
			s.first[w.ID] = threads[w.ID]
			s.where[w.ID], stack = whereIs(w, threads)
			v.Log.Error("worker is stalled", "worker", w.ID, "cpu", w.CPU, "thread", w.Thread, "where", s.where[w.ID], "stack", stack)
		}
		list = append(list, problem.Problem{
			Kind: problem.WorkerStalled, Object: fmt.Sprint("Worker ", w.ID), Logged: true,
			Reason: fmt.Sprintf("has finished no round for %d s on CPU %d (thread %d): %s", n+noticedAfter, w.CPU, w.Thread, s.where[w.ID]),
		})
		limit := v.Configuration.Workers.StallSeconds
		past := n - max(1, limit-noticedAfter)
		over = over || limit > 0 && past >= 0 && past%retryLooks == 0
	}
	for id := range s.looks {
		if now[id] == 0 {
			v.Log.Warn("worker goes on", "worker", id, "after", time.Duration(s.looks[id]+noticedAfter)*time.Second)
		}
	}
	s.looks = now
	v.Problems.Replace(partWorkers, list...)
	return over
}

// startAgain executes Weir again, for which connections wait as after a crash. It returns why
// it does not.
func (v *Workers) startAgain(where map[int]string) error {
	switch {
	case v.Configuration.Death.HoldSeconds == 0:
		return fmt.Errorf("death.holdSeconds is 0: connections would end")
	case v.Ending.Leaving() || v.Ending.Draining():
		return fmt.Errorf("it ends")
	}
	note := filepath.Join(filepath.Dir(v.Configuration.Admin.Socket), "stalled")
	if text, err := statefile.Read(note, 64); err == nil {
		last, err := time.Parse(time.RFC3339, string(text))
		if since := time.Since(last); err == nil && since >= 0 && since < againAfter {
			return fmt.Errorf("it did so %s ago", since.Round(time.Second))
		}
	}
	if err := statefile.Replace(note, []byte(time.Now().Format(time.RFC3339))); err != nil {
		return fmt.Errorf("note the time, so that it is not done over and over: %w", err)
	}
	v.Log.Error("a worker stays stalled: starting again", "workers", where, "holdSeconds", v.Configuration.Death.HoldSeconds)
	v.Notify.Alive() // which was not fed since the stall: it would end the start
	err := v.again()
	v.Log.Error("ending, for the service manager to start Weir again", "err", err)
	os.Exit(1)
	return nil
}

// endless returns why execve could wait forever for the end of a stalled thread, nil if it does
// not: all other threads, and the workers that forward, have ended by then.
func (s *stalls) endless(stalled []lb.StalledWorker) error {
	for _, w := range stalled {
		switch now := threadOf(w); {
		case now.state == "D":
			return fmt.Errorf("thread %d cannot be ended: it waits in the kernel, %s", w.Thread, now)
		case now.state == "R" && now.user == s.first[w.ID].user:
			return fmt.Errorf("thread %d could not end: it gets no CPU, or does not leave the kernel", w.Thread)
		}
	}
	return nil
}

// thread is what the kernel says of a worker's thread.
type thread struct {
	state string // as in proc_pid_stat(5)
	user  string // CPU time outside the kernel
	call  int    // system call that it waits in, -1 for none
	in    string // function of the kernel that it waits in
}

func threadOf(w lb.StalledWorker) thread {
	read := func(name string) string {
		b, err := os.ReadFile(fmt.Sprintf("/proc/self/task/%d/%s", w.Thread, name))
		if err != nil {
			return ""
		}
		return strings.TrimSpace(string(b))
	}
	t := thread{call: -1}
	stat := read("stat")
	const userTime = 14 - 3 // behind the name, as in start.go
	if f := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:]); len(f) > userTime {
		t.state, t.user = f[0], f[userTime]
	}
	call, _, _ := strings.Cut(read("syscall"), " ")
	if n, err := strconv.Atoi(call); err == nil && n >= 0 {
		t.call = n
		if in := read("wchan"); in != "0" {
			t.in = in
		}
	}
	return t
}

func (t thread) String() string {
	s := "thread state " + t.state
	if t.call >= 0 {
		s += fmt.Sprintf(", in system call %d", t.call)
	}
	if t.in != "" {
		s += " (" + t.in + ")"
	}
	return s
}

// whereIs describes a worker's place for a line, and has the stack of its goroutine.
//
// For a stack the runtime stops all threads, and with them the workers that forward. It would
// wait for a thread that runs, or gets no CPU, or makes a call of the packet path (RawSyscall in
// lb/xsk): nothing could end that, not even SIGKILL by a timer where Weir is process 1 of a
// container. So there is a stack only where each stalled worker waits in another call.
func whereIs(w lb.StalledWorker, threads map[int]thread) (where, stack string) {
	where = threads[w.ID].String()
	for _, t := range threads {
		if t.call < 0 || t.call == unix.SYS_SENDTO || t.call == unix.SYS_RECVFROM {
			return where, "not to be had without a halt of all workers"
		}
	}
	stack = stackOf(w.ID)
	for line := range strings.Lines(stack) {
		if strings.Contains(line, "/lb/worker.") {
			return where + ", " + strings.TrimSpace(line), stack
		}
	}
	return where, stack
}

// stackOf is the stack of a worker's goroutine, a line for each function, the innermost first.
func stackOf(worker int) string {
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
