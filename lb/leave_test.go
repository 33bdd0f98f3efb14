package lb

import (
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/lb/ports"
	"github.com/weirlb/weir/perf/netlab"
	"github.com/weirlb/weir/perf/netlab/labtest"
)

// A process that ends for good before it has known the Services removes the program of the
// process before it too, which ended for a restart.
func TestCloseBeforeTrafficIsTakenDetachesTheLastProcess(t *testing.T) {
	labtest.Require(t)
	lab, err := netlab.NewEdge(netlab.EdgeConfig{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := lab.Close(); err != nil {
			t.Error(err)
		}
	})
	pins, state := t.TempDir(), t.TempDir()
	if err := unix.Mount("bpf", pins, "bpf", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(pins, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	open := func() (*LB, error) {
		return New(Config{
			Interfaces: []ports.Interface{{Name: "eth0"}, {Name: "eth1"}}, Workers: 1,
			SNATPortLo: 61000, SNATPortHi: 65535, MaxFlows: 1024, FrameSize: 2048,
			PinDir: pins + "/weir", StateDir: state, Log: slog.New(slog.DiscardHandler),
		})
	}
	attached := func() bool {
		l, err := netlink.LinkByName("eth0")
		return err == nil && l.Attrs().Xdp != nil && l.Attrs().Xdp.Attached
	}
	err = lab.Edge.Do(func() error {
		last, err := open()
		if err != nil {
			return err
		}
		// The sockets and the router end with the process.
		if err := errors.Join(last.Apply(nil, nil), last.Leave(), last.ports.Close(), last.memory.Close(), last.router.Close()); err != nil {
			return err
		}
		l, err := open()
		if err != nil {
			return err
		}
		if !attached() {
			t.Error("the program of the last process has gone at the start of the next")
		}
		if err := l.Close(); err != nil {
			return err
		}
		if attached() {
			t.Error("the program of the last process is still attached")
		}
		if _, err := os.Stat(pins + "/weir"); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("its directory of pins is still there: %v", err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
