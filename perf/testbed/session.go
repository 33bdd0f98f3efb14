package testbed

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// LeadSession returns where this process leads a session, and else runs the program anew as the leader of
// one, and ends with its status. The scheduler weighs sessions (autogroup in sched(7)), and a testbed has
// precedence: a process that is killed could not give that of its caller's session back, and all later
// programs of the session would keep the kernel's own threads from running.
func LeadSession() {
	if leads() {
		return
	}
	runtime.LockOSThread() // the child ends with the thread
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Args[0] = os.Args[0]
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGTERM}
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	if err := cmd.Start(); err != nil {
		fmt.Fprintf(os.Stderr, "a session of its own: %v\n", err)
		os.Exit(1)
	}
	go func() {
		for s := range signals {
			_ = cmd.Process.Signal(s)
		}
	}()
	err := cmd.Wait()
	var exit *exec.ExitError
	switch {
	case err == nil:
		os.Exit(0)
	case errors.As(err, &exit) && exit.Exited():
		os.Exit(exit.ExitCode())
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// leads reports whether this process leads its session.
func leads() bool {
	session, err := unix.Getsid(0)
	return err == nil && session == os.Getpid()
}
