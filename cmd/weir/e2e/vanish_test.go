package e2e

import (
	"context"
	"errors"
	"strings"
	"testing"
)

// An interface that goes away takes its own endpoints with it, nothing else.
func TestWireInterfaceVanishes(t *testing.T) {
	f := ownFixture(t, options{services: kinds})
	for _, s := range kinds {
		f.checkLoad(t, f.Client, s.at(httpPort, false), 20)
	}
	if err := f.Edge.Edge.Delete("eth1"); err != nil {
		t.Fatal(err)
	}
	err := f.poll(func(context.Context) error {
		if !strings.Contains(f.logTail(), "interface eth1 is gone") {
			return errors.New("it is not said")
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	bothFamilies(t, func(t *testing.T, six bool) { f.checkLoad(t, f.Client, toPod.at(httpPort, six), 100) })
	if err := f.weir.Stop(within); err != nil {
		t.Fatal(err)
	}
	if code := f.weir.ExitCode(); code != 0 {
		t.Errorf("exit status %d: %s", code, f.logTail())
	}
}
