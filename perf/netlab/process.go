package netlab

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"
)

// Process is a running command inside a namespace.
type Process struct {
	Cmd  *exec.Cmd
	done chan struct{}
	err  error // valid once done is closed
}

// Start starts cmd inside the namespace's network and mount namespaces, in a new process
// group, so that a Ctrl-C at the terminal reaches only the
// process that runs the lab. The command is killed when the lab closes and
// when the process that runs the lab dies.
func (n *Namespace) Start(cmd *exec.Cmd) (*Process, error) {
	if cmd.Dir == "" {
		// The parked thread has had a separate working directory since it left the mount
		// namespace.
		wd, err := os.Getwd()
		if err != nil {
			return nil, err
		}
		cmd.Dir = wd
	}
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	// A new session has a new process group.
	cmd.SysProcAttr.Setpgid = !cmd.SysProcAttr.Setsid
	// The signal is sent when the thread that forked ends, not the process:
	// the parked thread ends with the namespace.
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	if err := n.Inside(cmd.Start); err != nil {
		return nil, fmt.Errorf("start in namespace %s: %w", n.name, err)
	}
	p := &Process{Cmd: cmd, done: make(chan struct{})}
	n.mu.Lock()
	n.procs = append(n.procs, p)
	n.mu.Unlock()
	go func() {
		p.err = cmd.Wait()
		close(p.done)
	}()
	return p, nil
}

// Done is closed when the process has ended and the output is complete.
func (p *Process) Done() <-chan struct{} { return p.done }

// Err waits for the end of the process and returns the error of exec.Cmd.Wait.
func (p *Process) Err() error {
	<-p.done
	return p.err
}

// ExitCode waits for the end of the process; -1 when a signal ended it.
func (p *Process) ExitCode() int {
	<-p.done
	return p.Cmd.ProcessState.ExitCode()
}

// Signal sends sig.
func (p *Process) Signal(sig os.Signal) error { return p.Cmd.Process.Signal(sig) }

// Stop sends SIGTERM and waits until the process has ended; after the given
// time it kills the process and says so.
func (p *Process) Stop(within time.Duration) error {
	if err := p.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	select {
	case <-p.done:
		return nil
	case <-time.After(within):
		return errors.Join(fmt.Errorf("%s was still running %s after SIGTERM", p.Cmd.Path, within), p.Kill())
	}
}

// Kill sends SIGKILL and waits for the end; a process that has ended is no
// error.
func (p *Process) Kill() error {
	if err := p.Signal(syscall.SIGKILL); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	<-p.done
	return nil
}
