package lb

import (
	"context"
	"encoding/binary"
	"errors"
	"io/fs"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/lb/ports"
	"github.com/weirlb/weir/perf/netlab"
	"github.com/weirlb/weir/perf/netlab/labtest"
	"github.com/weirlb/weir/perf/netlab/patience"
)

// onEdge runs f in the network namespace of a node, with a function that opens load balancers
// there, one after another.
func onEdge(t *testing.T, hold time.Duration, f func(lab *netlab.Edge, pins string, open func() *LB) error) {
	t.Helper()
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
	mount, state := t.TempDir(), t.TempDir()
	if err := unix.Mount("bpf", mount, "bpf", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(mount, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	pins := mount + "/weir"
	if err := lab.Edge.Do(func() error {
		return f(lab, pins, func() *LB {
			l, err := New(Config{
				Interfaces: []ports.Interface{{Name: "eth0"}, {Name: "eth1"}}, Workers: 1,
				SNATPortLo: 61000, SNATPortHi: 65535, MaxFlows: 1024, FrameSize: 2048,
				PinDir: pins, StateDir: state, Log: slog.New(slog.DiscardHandler), Hold: hold,
			})
			if err != nil {
				t.Fatal(err)
			}
			return l
		})
	}); err != nil {
		t.Fatal(err)
	}
}

// leave ends a load balancer as a restart does; the sockets and the router end with the
// process.
func leave(l *LB) error {
	_, err := l.Leave(false)
	return errors.Join(err, l.ports.Close(), l.memory.Close(), l.router.Close())
}

// A process that ends for good before it has known the Services removes the program of the
// process before it too, which ended for a restart.
func TestCloseBeforeTrafficIsTakenDetachesTheLastProcess(t *testing.T) {
	attached := func() bool {
		l, err := netlink.LinkByName("eth0")
		return err == nil && l.Attrs().Xdp != nil && l.Attrs().Xdp.Attached
	}
	onEdge(t, 0, func(_ *netlab.Edge, pins string, open func() *LB) error {
		last := open()
		if err := errors.Join(last.Apply(nil, nil, nil), leave(last)); err != nil {
			return err
		}
		l := open()
		if !attached() {
			t.Error("the program of the last process has gone at the start of the next")
		}
		if err := l.Close(); err != nil {
			return err
		}
		if attached() {
			t.Error("the program of the last process is still attached")
		}
		if _, err := os.Stat(pins); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("its directory of pins is still there: %v", err)
		}
		return nil
	})
}

// Packets wait for the first view of Services no longer than the hold of the last process
// lasts. Then the kernel has them, until the view is there.
func TestPacketsDoNotWaitForTheViewForever(t *testing.T) {
	const port = 61000 // of the SNAT sources: Weir's
	onEdge(t, time.Second, func(lab *netlab.Edge, _ string, open func() *LB) error {
		addr := netip.AddrPortFrom(netlab.Host4(netlab.ClientNet, 1), port)
		host, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(addr))
		if err != nil {
			return err
		}
		defer host.Close()
		client, err := lab.Client.DialContext(t.Context(), "udp", addr.String())
		if err != nil {
			return err
		}
		defer client.Close()
		var sent uint64
		kernelGets := func() bool {
			sent++ // an earlier packet may come late
			_, _ = client.Write(binary.BigEndian.AppendUint64(nil, sent))
			_ = host.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
			for buf := make([]byte, 8); ; {
				if _, err := host.Read(buf); err != nil {
					return false
				}
				if binary.BigEndian.Uint64(buf) == sent {
					return true
				}
			}
		}

		last := open()
		if err := errors.Join(last.Apply(nil, nil, nil), leave(last)); err != nil {
			return err
		}
		l := open()
		if !l.steer.Adopted() {
			t.Error("the maps of the last process are not adopted")
		}
		ctx, stop := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { _ = lab.Edge.Do(func() error { return l.Run(ctx) }) }) // a goroutine leaves the namespace
		for deadline := time.Now().Add(patience.For(20 * time.Second)); !kernelGets(); {
			if time.Now().After(deadline) {
				t.Error("the kernel gets no packet")
				break
			}
		}
		err = l.Apply(nil, nil, nil)
		if kernelGets() {
			t.Error("the kernel gets packets of Weir's after the view is there")
		}
		stop()
		running.Wait()
		return errors.Join(err, l.Close())
	})
}

// A worker that is stalled keeps its sockets and the flow table, and nothing else: the process ends
// for good without it.
func TestCloseDoesNotWaitForAStalledWorker(t *testing.T) {
	onEdge(t, 0, func(lab *netlab.Edge, pins string, open func() *LB) error {
		before, err := netlab.StateOf(lab.Edge)
		if err != nil {
			return err
		}
		l := open()
		if err := l.Apply(nil, nil, nil); err != nil {
			return err
		}
		l.workers.running.Add(1) // stands for a worker that never ends
		closed := make(chan error, 1)
		go func() { closed <- lab.Edge.Do(l.Close) }() // a goroutine leaves the namespace
		select {
		case err = <-closed:
		case <-time.After(patience.For(20 * time.Second)):
			t.Error("it waits for the worker")
		}
		l.workers.running.Done()
		if err == nil {
			err = <-closed
		}
		if !errors.Is(err, ErrStalled) {
			t.Errorf("%v, want %v", err, ErrStalled)
		}
		after, err := netlab.StateOf(lab.Edge)
		if left := before.Diff(after); len(left) > 0 {
			t.Errorf("left behind: %v", left)
		}
		if _, e := os.Stat(pins); !errors.Is(e, fs.ErrNotExist) {
			t.Errorf("the directory of pins is still there: %v", e)
		}
		claim, e := newClaim()
		return errors.Join(err, e, claim.Close(), l.ports.Close(), l.memory.Close())
	})
}
