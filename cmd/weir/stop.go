package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/cmd/weir/config"
)

func newStop() *cobra.Command {
	var socket string
	cmd := &cobra.Command{
		Use:   "stop [flags]",
		Short: "Stop the running Weir for good",
		Long: `Drains the Weir of this node and waits for its end: health endpoints fail, then
established connections continue for up to drain.timeoutSeconds, then everything is
removed from the host. SIGTERM does the same, unless onStop makes it a restart,
which keeps connections for the next process.

A supervisor that restarts Weir must be stopped with its own command, for example
systemctl stop.`,
		Example: `  weir stop
  weir stop --admin-socket /run/weir/weir.sock`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return stop(cmd.Context(), cmd.OutOrStdout(), socket)
		},
	}
	cmd.Flags().StringVar(&socket, "admin-socket", config.Default().Admin.Socket, "`path` of the daemon's socket")
	return cmd
}

// stopEvery is the time between two questions whether Weir has ended.
const stopEvery = 500 * time.Millisecond

func stop(ctx context.Context, out io.Writer, socket string) error {
	process := api.Process(socket)
	if process != nil {
		defer process.Close()
	}
	c := api.NewClient(socket)
	if err := c.Stop(ctx); err != nil {
		return err
	}
	tick := time.NewTicker(stopEvery)
	defer tick.Stop()
	for last := ""; ; {
		s, err := c.Status(ctx)
		if errors.Is(err, api.ErrNotRunning) && ended(process) {
			fmt.Fprintln(out, "stopped")
			return nil
		}
		// Other errors pass: the socket closes before the process ends.
		if line := drainLine(s); err == nil && line != last {
			last = line
			fmt.Fprintln(out, line)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

// ended reports whether a process has ended, as far as it is known.
func ended(process *os.File) bool {
	if process == nil {
		return true
	}
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(process.Fd()), Events: unix.POLLIN}}, 0)
	return n > 0 || err != nil && !errors.Is(err, unix.EINTR)
}

// drainLine says how far the drain is.
func drainLine(s *api.Status) string {
	switch {
	case s == nil || s.Drain == nil:
		return "stopping"
	case s.Drain.Accepting:
		return fmt.Sprintf("draining: health checks fail, %d connections", s.Drain.Connections)
	}
	return fmt.Sprintf("draining: %d connections left", s.Drain.Connections)
}
