package chaos

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"syscall"
	"time"

	"github.com/weirlb/weir/perf/netlab"
	"github.com/weirlb/weir/perf/netlab/patience"
)

func (n *node) kill(ctx context.Context, hold func()) error {
	n.process.Lock()
	defer n.process.Unlock()
	if err := n.weir.Kill(); err != nil {
		return err
	}
	hold()
	return n.adopt(ctx)
}

func (n *node) restart(ctx context.Context, hold func()) error {
	n.process.Lock()
	defer n.process.Unlock()
	if err := n.weir.Signal(syscall.SIGUSR2); err != nil {
		return err
	}
	select {
	case <-n.weir.Done():
	case <-time.After(patience.For(20 * time.Second)):
		return errors.New("the process goes on after SIGUSR2")
	}
	hold()
	return n.adopt(ctx)
}

// adopt starts a process that adopts the flow table, and has it verified.
func (n *node) adopt(ctx context.Context) error {
	if err := n.start(ctx); err != nil {
		return err
	}
	return n.check(ctx)
}

func (n *node) reload(_ context.Context, hold func()) error {
	hold()
	return n.weir.Signal(syscall.SIGHUP)
}

func (n *node) stall(_ context.Context, hold func()) error {
	n.process.Lock()
	defer n.process.Unlock()
	if err := n.weir.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	hold()
	return n.weir.Signal(syscall.SIGCONT)
}

// hog runs two loops for each CPU that Weir's workers may have.
func (n *node) hog(_ context.Context, hold func()) error {
	var hogs []*netlab.Process
	for range 4 {
		p, err := n.Edge.Edge.Start(exec.Command("/bin/sh", "-c", "while :; do :; done"))
		if err != nil {
			return err
		}
		hogs = append(hogs, p)
	}
	hold()
	for _, p := range hogs {
		if err := p.Kill(); err != nil {
			return err
		}
	}
	return nil
}

// fillDisk leaves no byte where the flow table is, kills the process and starts another.
func (n *node) fillDisk(ctx context.Context, hold func()) error {
	filler := n.path("state/filler")
	inside := n.Edge.Edge.Inside
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
	err = n.kill(ctx, hold)
	return errors.Join(err, inside(func() error { return os.Remove(filler) }))
}

// pressMemory limits the memory of the process to a little more than it has. Where the
// kernel kills it for that, another is started.
func (n *node) pressMemory(ctx context.Context, hold func()) error {
	if n.group == nil {
		return nil
	}
	n.process.Lock()
	defer n.process.Unlock()
	if err := n.group.press(1 << 20); err != nil {
		return err
	}
	hold()
	if err := n.group.release(); err != nil {
		return err
	}
	// A process that was killed a moment ago may still be ending.
	if err := n.check(ctx); err == nil {
		return nil
	}
	select {
	case <-n.weir.Done():
		return n.adopt(ctx)
	case <-time.After(patience.For(5 * time.Second)):
		return n.check(ctx)
	}
}
