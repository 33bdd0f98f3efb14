package chaos

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"github.com/weirlb/weir/perf/netlab"
	"github.com/weirlb/weir/perf/netlab/patience"
)

// process is Weir on the edge node, with the faults of it.
type process struct {
	lab       *netlab.Edge
	binary    string
	frontends int // that it serves once it is ready
	admin     *admin
	group     *cgroup    // nil: the kernel has none that limits memory
	ending    sync.Mutex // a fault that ends the process holds it
	daemon    *netlab.Daemon
	starts    int
	report    *Report
}

// close ends the process.
func (p *process) close() (err error) {
	if p.daemon != nil {
		err = p.daemon.Kill()
	}
	if p.group != nil {
		err = errors.Join(err, p.group.remove())
	}
	return err
}

// start starts `weir run` and waits until it serves every frontend.
func (p *process) start(ctx context.Context, flags ...string) error {
	p.starts++
	cmd := exec.Command(p.binary, append([]string{"run", "--config", fileOf(p.lab, "config.yaml")}, flags...)...)
	if p.group != nil {
		cmd = p.group.inside(cmd)
	}
	// A heap of less than 400 % garbage is as large as it gets within seconds, so that growth
	// is a leak.
	cmd.Env = append(os.Environ(), "GOGC=50")
	var err error
	p.daemon, err = p.lab.Edge.StartDaemon(cmd, fileOf(p.lab, fmt.Sprintf("weir-%d.log", p.starts)))
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, patience.For(30*time.Second))
	defer cancel()
	err = p.daemon.Until(ctx, func(ctx context.Context) error {
		s, err := p.admin.status(ctx)
		switch {
		case err != nil:
			return err
		case s.PID != p.daemon.Cmd.Process.Pid:
			return fmt.Errorf("process %d answers", s.PID)
		case !s.Synced || s.Frontends != p.frontends:
			return fmt.Errorf("%d frontends, want %d", s.Frontends, p.frontends)
		case len(s.Interfaces) < 2:
			return fmt.Errorf("%d interfaces are attached", len(s.Interfaces))
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("start %d of Weir: %w\n%s", p.starts, err, p.logTail())
	}
	return nil
}

func (p *process) logTail() string { return p.daemon.LogTail(30) }

// check has the running process verify the flow table.
func (p *process) check(ctx context.Context) error {
	v, err := p.admin.verify(ctx)
	if err != nil {
		return err
	}
	p.report.verified(v)
	return nil
}

func (p *process) kill(ctx context.Context, hold func()) error {
	p.ending.Lock()
	defer p.ending.Unlock()
	if err := p.daemon.Kill(); err != nil {
		return err
	}
	hold()
	return p.adopt(ctx)
}

func (p *process) restart(ctx context.Context, hold func()) error {
	p.ending.Lock()
	defer p.ending.Unlock()
	if err := p.daemon.Signal(syscall.SIGUSR2); err != nil {
		return err
	}
	select {
	case <-p.daemon.Done():
	case <-time.After(patience.For(20 * time.Second)):
		return errors.New("the process goes on after SIGUSR2")
	}
	hold()
	return p.adopt(ctx)
}

// adopt starts a process that adopts the flow table, and has it verified.
func (p *process) adopt(ctx context.Context) error {
	if err := p.start(ctx); err != nil {
		return err
	}
	return p.check(ctx)
}

func (p *process) reload(_ context.Context, hold func()) error {
	hold()
	return p.daemon.Signal(syscall.SIGHUP)
}

func (p *process) stall(_ context.Context, hold func()) error {
	p.ending.Lock()
	defer p.ending.Unlock()
	if err := p.daemon.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	hold()
	return p.daemon.Signal(syscall.SIGCONT)
}

// hog runs two loops for each CPU that Weir's workers may have.
func (p *process) hog(_ context.Context, hold func()) error {
	var hogs []*netlab.Process
	for range 4 {
		h, err := p.lab.Edge.Start(exec.Command("/bin/sh", "-c", "while :; do :; done"))
		if err != nil {
			return err
		}
		hogs = append(hogs, h)
	}
	hold()
	for _, h := range hogs {
		if err := h.Kill(); err != nil {
			return err
		}
	}
	return nil
}

// fillDisk leaves no byte where the flow table is, kills the process and starts another.
func (p *process) fillDisk(ctx context.Context, hold func()) error {
	filler := fileOf(p.lab, "state/filler")
	inside := p.lab.Edge.Inside
	err := inside(func() error {
		f, err := os.Create(filler)
		if err != nil {
			return err
		}
		defer f.Close()
		zeros := make([]byte, 1<<20)
		for err == nil {
			_, err = f.Write(zeros)
		}
		if !errors.Is(err, syscall.ENOSPC) {
			return err
		}
		return nil
	})
	if err != nil {
		return err
	}
	err = p.kill(ctx, hold)
	return errors.Join(err, inside(func() error { return os.Remove(filler) }))
}

// pressMemory limits the memory of the process to a little more than it has. Where the
// kernel kills it for that, another is started.
func (p *process) pressMemory(ctx context.Context, hold func()) error {
	if p.group == nil {
		return nil
	}
	p.ending.Lock()
	defer p.ending.Unlock()
	if err := p.group.press(1 << 20); err != nil {
		return err
	}
	hold()
	if err := p.group.release(); err != nil {
		return err
	}
	// A process that was killed a moment ago may still be ending.
	if err := p.check(ctx); err == nil {
		return nil
	}
	select {
	case <-p.daemon.Done():
		return p.adopt(ctx)
	case <-time.After(patience.For(5 * time.Second)):
		return p.check(ctx)
	}
}
