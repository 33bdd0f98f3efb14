package process

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"syscall"
	"time"

	"github.com/weirlb/weir/cmd/weir/config"
	"github.com/weirlb/weir/cmd/weir/source"
)

// askTime bounds the question at SIGTERM whether another Pod follows. Weir serves meanwhile.
// The chart's grace period is 15 s more than a drain.
const askTime = 2 * time.Second

// nextPod is the part of a source that knows the DaemonSet: see kube.Source.NextPod.
type nextPod interface {
	NextPod(ctx context.Context) (ends string, err error)
}

// meaningOfTerm is the signal that SIGTERM stands for: SIGUSR2 if it is a restart, SIGTERM if
// it is a stop. A signal or Stop that comes while the API server is asked decides at once.
func (e *Ending) meaningOfTerm(ctx context.Context, hurry <-chan os.Signal) os.Signal {
	cfg := e.node.Configuration()
	onStop, asks := cfg.OnStop, cfg.Discovery.Kubernetes != nil && cfg.Death.HoldSeconds > 0
	switch {
	case onStop == config.StopLeave:
		return syscall.SIGUSR2
	case onStop != config.StopAuto || !asks || source.OwnDaemonSet().Name == "":
		return syscall.SIGTERM
	}
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	answer := make(chan func() os.Signal, 1)
	go func() {
		ends, err := e.askNextPod(ctx)
		answer <- func() os.Signal { return e.stopOrRestart(ends, err) }
	}()
	select {
	case decide := <-answer:
		return decide()
	case <-e.stopAsked:
		return syscall.SIGTERM
	case s := <-hurry:
		if s == syscall.SIGUSR2 {
			return s
		}
		return os.Interrupt
	}
}

// askNextPod waits for the source, too: SIGTERM may come during the start.
func (e *Ending) askNextPod(ctx context.Context) (ends string, err error) {
	select {
	case <-e.sourced:
	case <-ctx.Done():
		return "", errors.New("the source is not ready yet")
	}
	s, ok := e.source.(nextPod)
	if !ok {
		return "", errors.New("the source has no API server")
	}
	return s.NextPod(ctx)
}

// stopOrRestart decides by the answer of the API server. Without an answer, or the right to
// ask, SIGTERM is a restart. If that is wrong, packets are dropped for death.holdSeconds, then
// the kernel has them, and `weir cleanup` removes the idle program. A stop in error would cut
// every connection of the node, and those of all nodes in turn while the API server is down or
// a right is missing. An uninstall does not depend on it: see daemonSet in discovery/kube.
func (e *Ending) stopOrRestart(ends string, err error) os.Signal {
	switch {
	case err != nil:
		e.log.Warn("SIGTERM is taken for a restart, because the API server does not tell whether another Pod follows: "+
			"if none does, run `weir cleanup` on this node",
			"daemonSet", source.OwnDaemonSet(), "holdSeconds", e.node.Configuration().Death.HoldSeconds, "err", err)
		return syscall.SIGUSR2
	case ends != "":
		e.log.Info("SIGTERM is a stop: no Pod follows on this node", "reason", ends)
		return syscall.SIGTERM
	}
	e.log.Info("SIGTERM is a restart: another Pod of the DaemonSet follows on this node", "daemonSet", source.OwnDaemonSet())
	return syscall.SIGUSR2
}

// WarnOfOnStop logs why onStop: auto does not tell restarts from stops, if so.
func WarnOfOnStop(cfg *config.Configuration, log *slog.Logger) {
	if cfg.OnStop != config.StopAuto {
		return
	}
	reason := ""
	switch {
	case cfg.Discovery.Kubernetes == nil:
		reason = "the source of Services is no cluster"
	case source.OwnDaemonSet().Name == "":
		reason = "DAEMONSET_NAME and POD_NAMESPACE are not set"
	case cfg.Death.HoldSeconds == 0:
		reason = "death.holdSeconds is 0"
	}
	if reason != "" {
		log.Warn("onStop: auto is detach: every SIGTERM is a stop", "reason", reason)
	}
}
