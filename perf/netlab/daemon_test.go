package netlab

import (
	"context"
	"errors"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestWireDaemonIsWaitedForAndKeepsALog(t *testing.T) {
	e := newEdge(t, EdgeConfig{})
	d, err := e.Edge.StartDaemon(exec.Command("/bin/sh", "-c", "echo one; echo two >&2; echo ready; read gone"), filepath.Join(e.Dir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Err(); err == nil { // its input has an end
		t.Error("it ended well")
	}
	if got := d.LogTail(2); got != "two\nready" {
		t.Errorf("the last two lines are %q", got)
	}
	notYet := errors.New("not yet")
	tries := 0
	err = d.Until(t.Context(), func(context.Context) error {
		if tries++; tries < 3 {
			return notYet
		}
		return nil
	})
	if !errors.Is(err, notYet) || !strings.Contains(err.Error(), "has ended") {
		t.Errorf("waiting for a process that has ended: %v", err)
	}

	sleeper, err := e.Edge.StartDaemon(exec.Command("/bin/sleep", "600"), filepath.Join(e.Dir(), "sleeper"))
	if err != nil {
		t.Fatal(err)
	}
	tries = 0
	if err := sleeper.Until(t.Context(), func(context.Context) error {
		if tries++; tries < 3 {
			return notYet
		}
		return nil
	}); err != nil || tries != 3 {
		t.Errorf("after %d tries: %v", tries, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	if err := sleeper.Until(ctx, func(context.Context) error { cancel(); return notYet }); !errors.Is(err, notYet) {
		t.Errorf("without time left: %v", err)
	}
}
