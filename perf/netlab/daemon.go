package netlab

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"
)

// Daemon is a process that goes on until it is stopped, with a file for the output.
type Daemon struct {
	*Process
	log string
}

// StartDaemon starts cmd as Start does. The output goes to the file, and to cmd.Stderr if
// that is set.
func (n *Namespace) StartDaemon(cmd *exec.Cmd, file string) (*Daemon, error) {
	log, err := os.Create(file)
	if err != nil {
		return nil, err
	}
	var out io.Writer = log
	if cmd.Stderr != nil {
		out = io.MultiWriter(log, cmd.Stderr)
	}
	cmd.Stdout, cmd.Stderr = out, out
	p, err := n.Start(cmd)
	if err != nil {
		_ = log.Close()
		return nil, err
	}
	go func() { // not before: with a second writer it is this process that writes
		<-p.Done()
		_ = log.Close()
	}()
	return &Daemon{p, file}, nil
}

// Running reports whether the process was started and has not ended.
func (d *Daemon) Running() bool {
	if d == nil {
		return false
	}
	select {
	case <-d.Done():
		return false
	default:
		return true
	}
}

// LogFile is the file with the output of the process.
func (d *Daemon) LogFile() string { return d.log }

// LogTail is the last lines that the process said.
func (d *Daemon) LogTail(lines int) string {
	if d == nil {
		return "it was not started"
	}
	b, err := os.ReadFile(d.log)
	if err != nil {
		return err.Error()
	}
	all := strings.Split(string(bytes.TrimSpace(b)), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// Until calls try, some times per second, until it returns nil. When ctx ends
// before, or the process does, it returns the last error of try.
func (p *Process) Until(ctx context.Context, try func(context.Context) error) error {
	var last error
	for {
		err := try(ctx)
		if err == nil {
			return nil
		}
		if last == nil || ctx.Err() == nil {
			last = err // and not that there was no time left
		}
		select {
		case <-ctx.Done():
			return last
		case <-p.Done():
			return fmt.Errorf("the process has ended (%v): %w", p.Err(), last)
		case <-time.After(20 * time.Millisecond):
		}
	}
}
