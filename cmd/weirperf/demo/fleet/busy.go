package fleet

import (
	"context"
	"errors"
	"os/exec"
	"runtime"
	"syscall"
	"time"
)

// busyFor is how long the CPUs are kept busy.
const busyFor = time.Minute

// occupy keeps every CPU busy for d, with two processes of the usual priority for each.
func occupy(ctx context.Context, d time.Duration) error {
	// Nothing is left spinning by a demo that is killed: the children end with this thread.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var errs []error
	var busy []*exec.Cmd
	for range 2 * runtime.NumCPU() {
		cmd := exec.Command("sh", "-c", "while :; do :; done")
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		if err := cmd.Start(); err != nil {
			errs = append(errs, err)
			break
		}
		busy = append(busy, cmd)
	}
	if len(errs) == 0 {
		errs = append(errs, wait(ctx, d))
	}
	for _, cmd := range busy {
		errs = append(errs, cmd.Process.Kill())
		_ = cmd.Wait() // says that it was killed
	}
	return errors.Join(errs...)
}

// ends are the ended sessions of each node, by the process that has counted them.
type ends [nodes]struct {
	pid    int
	number uint64
}

// until returns how many sessions have ended since. The end of a process counts as one: it has
// ended all of its sessions, and its successor counts anew.
func (e *ends) until(now ends) (n int) {
	for i := range e {
		if e[i].pid != now[i].pid {
			n++
			continue
		}
		n += int(now[i].number - e[i].number)
	}
	return n
}

func (b *bed) ended(ctx context.Context) (e ends, err error) {
	for i, n := range b.nodes {
		if !n.running() {
			continue
		}
		s, err := n.admin.Status(ctx)
		if err != nil {
			return e, err
		}
		e[i].pid = s.PID
		for k := range s.Announce.Peers {
			e[i].number += s.Announce.Peers[k].Ends
		}
	}
	return e, nil
}
