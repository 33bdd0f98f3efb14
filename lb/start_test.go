package lb

import (
	"log/slog"
	"testing"

	"github.com/weirlb/weir/lb/ports"
	"github.com/weirlb/weir/perf/netlab"
	"github.com/weirlb/weir/perf/netlab/labtest"
)

// Traffic is taken as soon as the first frontends are known, which may be before the workers'
// threads have run at all: packets then find frames on the fill rings. Without them the
// kernel drops what the program redirects.
func TestRingsAreFilledBeforeTrafficIsTaken(t *testing.T) {
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
	err = lab.Edge.Do(func() error {
		l, err := New(Config{
			Interfaces: []ports.Interface{{Name: "eth0"}, {Name: "eth1"}}, Workers: 1,
			SNATPortLo: 61000, SNATPortHi: 65535, MaxFlows: 1024, FrameSize: 2048,
			PinDir: t.TempDir(), StateDir: t.TempDir(), Log: slog.New(slog.DiscardHandler),
		})
		if err != nil {
			return err
		}
		for _, s := range l.ports.Sockets(0) {
			if size := s.FillSize(); s.FillFree(size) == size {
				t.Errorf("no frame on a fill ring of %d", size)
			}
		}
		if len(l.ports.Sockets(0)) != 2 {
			t.Errorf("%d sockets", len(l.ports.Sockets(0)))
		}
		return l.Close()
	})
	if err != nil {
		t.Fatal(err)
	}
}
