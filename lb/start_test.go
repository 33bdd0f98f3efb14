package lb

import (
	"bytes"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/weirlb/weir/lb/ports"
	"github.com/weirlb/weir/lb/probepath"
	"github.com/weirlb/weir/lb/route"
	"github.com/weirlb/weir/lb/vethpair"
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

// A former build had the routes of probes in the table of the host veth. They go before the host veth of
// the killed process is looked at, which stays, and not while another process runs.
func TestWhatAKilledProcessLeftIsRemovedFirst(t *testing.T) {
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
	removed := 0
	cfg := Config{
		Interfaces: []ports.Interface{{Name: "eth0"}, {Name: "eth1"}}, Workers: 1,
		SNATPortLo: 61000, SNATPortHi: 65535, MaxFlows: 1024, FrameSize: 2048,
		HostVeth4: netip.MustParsePrefix("169.254.77.0/24"), HostVethMark: 0x10, HostVethTable: 7765,
		PinDir: t.TempDir(), StateDir: t.TempDir(), Log: slog.New(slog.DiscardHandler),
		Stale: func() {
			removed++
			if err := probepath.Cleanup(); err != nil {
				t.Error(err)
			}
		},
	}
	err = lab.Edge.Do(func() error {
		last, err := New(cfg)
		if err != nil {
			return err
		}
		if _, err := New(cfg); err == nil || removed != 1 {
			t.Errorf("beside a process that runs: %v, %d removals", err, removed)
		}
		if err := errors.Join(leave(last), probesOfAFormerBuild(cfg.HostVethTable)); err != nil {
			return err
		}
		var log bytes.Buffer
		cfg.Log = slog.New(slog.NewTextHandler(&log, nil))
		next, err := New(cfg)
		if err != nil {
			return err
		}
		err = next.Close()
		if strings.Contains(log.String(), "made anew") {
			t.Errorf("the host veth is not kept:\n%s", &log)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// probesOfAFormerBuild makes a pair for probes, and a route of a probe in a table.
func probesOfAFormerBuild(table int) error {
	pair, err := vethpair.Make(vethpair.Config{Names: [2]string{"weir-probe", "weir-probed"}, MTU: 1500, Queues: 1})
	if err != nil {
		return err
	}
	if err := pair.SetUp(1500); err != nil {
		return err
	}
	return netlink.RouteAdd(&netlink.Route{
		LinkIndex: pair[0].Attrs().Index, Dst: &net.IPNet{IP: net.IP{192, 0, 2, 1}, Mask: net.CIDRMask(32, 32)},
		Scope: netlink.SCOPE_LINK, Table: table, Protocol: route.Protocol,
	})
}
