package steer

import (
	"bufio"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/perf/netlab"
)

func TestFrontendsReachTheSocketAndTheRestTheKernel(t *testing.T) {
	for _, mode := range []Mode{Native, Generic} {
		t.Run(mode.String(), func(t *testing.T) {
			w := newWire(t, netlab.LinkConfig{})
			p := closed(t, load(t, Config{}))
			a, err := p.Attach(w.dev.Index, 3, mode, bpffs(t))
			must(t, err)
			if a.Mode != mode || !a.Pinned || a.Adopted || a.NativeError != nil {
				t.Fatalf("attachment %+v", a)
			}
			s := w.openSocket(0)
			must(t, p.SetSocket(3, 0, s.FD()))
			kernel := w.listen(30080)
			for _, addr := range []netip.Addr{node4, node6} {
				front, other := netip.AddrPortFrom(addr, 30081), netip.AddrPortFrom(addr, 30080)
				must(t, p.AddFrontend(front, unix.IPPROTO_UDP, 0))
				w.send(front)
				w.socketGets(s)
				w.send(other)
				w.kernelGets(kernel)
			}
			c, err := p.Counters()
			must(t, err)
			if got := c[0].Packets[Redirected]; got != 2 {
				t.Errorf("%d packets redirected", got)
			}
			if got := c[0].Packets[PassNoMatch]; got < 2 {
				t.Errorf("%d packets without a match", got)
			}
		})
	}
}

// TestKernelTakesOverWhenTheSocketsDie is what kill -9 of Weir comes to: the
// sockets close, the pinned link stays.
func TestKernelTakesOverWhenTheSocketsDie(t *testing.T) {
	w := newWire(t, netlab.LinkConfig{})
	dir := bpffs(t)
	p := load(t, Config{})
	_, err := p.Attach(w.dev.Index, 0, Auto, dir)
	must(t, err)
	s := w.openSocket(0)
	must(t, p.SetSocket(0, 0, s.FD()))
	front := netip.AddrPortFrom(node4, 30080)
	must(t, p.AddFrontend(front, unix.IPPROTO_UDP, 0))
	kernel := w.listen(30080)
	w.send(front)
	w.socketGets(s)

	must(t, s.Close())
	must(t, p.Close(false))
	w.send(front)
	w.kernelGets(kernel)
	if mode, err := attachedMode(w.dev.Index); err != nil || mode != Native {
		t.Errorf("mode %v, %v: the program should still be attached", mode, err)
	}
	must(t, CleanupStale(dir))
	if mode, err := attachedMode(w.dev.Index); err == nil {
		t.Errorf("mode %v: the program should be gone", mode)
	}
}

// While a hold lasts, the packets of a queue that has lost its socket reach nobody. The
// kernel keeps what is not Weir's, and what is on a queue without a socket by intention.
func TestPacketsAreHeldForTheNextProcess(t *testing.T) {
	w := newWire(t, netlab.LinkConfig{})
	dir := bpffs(t)
	p := closed(t, load(t, Config{}))
	a, err := p.Attach(w.dev.Index, 0, Auto, dir)
	must(t, err)
	s := w.openSocket(0)
	must(t, p.SetSocket(0, 0, s.FD()))
	front, other := netip.AddrPortFrom(node4, 30080), netip.AddrPortFrom(node4, 30081)
	must(t, p.AddFrontend(front, unix.IPPROTO_UDP, 0))
	kernel, host := w.listen(30080), w.listen(30081)
	must(t, p.Hold(time.Hour))
	w.send(front)
	w.socketGets(s)

	must(t, s.Close())
	w.send(front)
	w.send(other)
	w.kernelGets(host)
	if got := packets(t, p)[Held]; got != 1 {
		t.Errorf("%d packets held, want 1", got)
	}

	must(t, p.Hold(0))
	w.send(front)
	w.kernelGets(kernel)
	must(t, p.Hold(time.Hour))
	must(t, p.ClearSocket(0, 0))
	w.send(front)
	w.kernelGets(kernel)

	// A slot that is used again holds nothing of the last interface.
	s = w.openSocket(0)
	must(t, p.SetSocket(0, 0, s.FD()))
	must(t, p.Detach(a))
	must(t, s.Close())
	_, err = p.Attach(w.dev.Index, 0, Auto, dir)
	must(t, err)
	w.send(front)
	w.kernelGets(kernel)
	if got := packets(t, p)[Held]; got != 1 {
		t.Errorf("%d packets held in the end, want 1", got)
	}
}

func packets(t *testing.T, p *Program) [Verdicts]uint64 {
	t.Helper()
	c, err := p.TotalCounters()
	must(t, err)
	return c
}

// TestKernelTakesOverWhenTheProcessIsKilled does it to a real process.
func TestKernelTakesOverWhenTheProcessIsKilled(t *testing.T) {
	const helper = "WEIR_STEER_TEST_HELPER"
	front := netip.AddrPortFrom(node4, 30080)
	if dir := os.Getenv(helper); dir != "" {
		serveUntilKilled(t, dir, front)
	}
	w := newWire(t, netlab.LinkConfig{})
	dir := bpffs(t)
	kernel := w.listen(30080)

	// The process starts in the namespace of this thread.
	cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), helper+"="+dir)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	t.Cleanup(func() { cmd.Process.Kill() })
	lines := bufio.NewScanner(out)
	says := func(want string) {
		t.Helper()
		for lines.Scan() {
			if lines.Text() == want {
				return
			}
		}
		t.Fatalf("the process did not say %q: %v", want, lines.Err())
	}
	says("attached")
	w.send(front)
	says("received")

	must(t, cmd.Process.Kill())
	cmd.Wait()
	w.send(front)
	w.kernelGets(kernel)

	p := closed(t, load(t, Config{}))
	a, err := p.Attach(w.dev.Index, 0, Auto, dir)
	must(t, err)
	if !a.Adopted {
		t.Errorf("attachment %+v", a)
	}
	must(t, p.AddFrontend(front, unix.IPPROTO_UDP, 0))
	s := w.openSocket(0) // the dead process's queue is free, or soon
	must(t, p.SetSocket(0, 0, s.FD()))
	w.send(front)
	w.socketGets(s)
}

// serveUntilKilled is the process that is killed.
func serveUntilKilled(t *testing.T, dir string, front netip.AddrPort) {
	dev, err := netlink.LinkByName("wan.5")
	must(t, err)
	w := &wire{TB: t, dev: dev.Attrs()}
	p := load(t, Config{})
	_, err = p.Attach(w.dev.Index, 0, Auto, dir)
	must(t, err)
	s := w.openSocket(0)
	must(t, p.SetSocket(0, 0, s.FD()))
	must(t, p.AddFrontend(front, unix.IPPROTO_UDP, 0))
	fmt.Println("attached")
	w.socketGets(s)
	fmt.Println("received")
	time.Sleep(time.Minute)
	t.Fatal("was not killed")
}

// TestClearedSocketGivesTheQueueToTheKernel, and so do queues that never had a
// socket.
// A queue whose socket was set before another queue's failed is not held: the interface has
// not joined.
func TestSocketsAreSetForAllQueuesOrNone(t *testing.T) {
	w := newWire(t, netlab.LinkConfig{})
	p := closed(t, load(t, Config{}))
	_, err := p.Attach(w.dev.Index, 0, Auto, bpffs(t))
	must(t, err)
	front := netip.AddrPortFrom(node4, 30080)
	must(t, p.AddFrontend(front, unix.IPPROTO_UDP, 0))
	kernel := w.listen(30080)
	must(t, p.Hold(time.Hour))

	s := w.openSocket(0)
	const none = -1
	if err := p.SetSockets(0, []int{s.FD(), none}); !errors.Is(err, unix.EBADF) {
		t.Errorf("error %v, want EBADF", err)
	}
	must(t, s.Close())
	w.send(front)
	w.kernelGets(kernel)
	if got := packets(t, p)[Held]; got != 0 {
		t.Errorf("%d packets held, want none", got)
	}
}

func TestClearedSocketGivesTheQueueToTheKernel(t *testing.T) {
	w := newWire(t, netlab.LinkConfig{})
	p := closed(t, load(t, Config{}))
	_, err := p.Attach(w.dev.Index, 0, Auto, bpffs(t))
	must(t, err)
	front := netip.AddrPortFrom(node4, 30080)
	must(t, p.AddFrontend(front, unix.IPPROTO_UDP, 0))
	kernel := w.listen(30080)
	w.send(front)
	w.kernelGets(kernel)

	s := w.openSocket(0)
	must(t, p.SetSocket(0, 0, s.FD()))
	w.send(front)
	w.socketGets(s)
	must(t, p.ClearSocket(0, 0))
	must(t, p.ClearSocket(0, 0)) // there is none any more
	w.send(front)
	w.kernelGets(kernel)
	c, err := p.Counters()
	must(t, err)
	if got := c[0].Packets[PassNoSocket]; got != 2 {
		t.Errorf("%d packets without a socket, want 2", got)
	}
}

// What was counted on an interface stays counted when it is given up, and its slot
// goes to another.
func TestCountsStayWhenAnInterfaceIsGivenUp(t *testing.T) {
	w := newWire(t, netlab.LinkConfig{})
	p := closed(t, load(t, Config{}))
	front := netip.AddrPortFrom(node4, 30080)
	must(t, p.AddFrontend(front, unix.IPPROTO_UDP, 0))
	kernel := w.listen(30080)
	for n := range uint64(2) {
		a, err := p.Attach(w.dev.Index, 3, Auto, t.TempDir())
		must(t, err)
		w.send(front)
		w.kernelGets(kernel)
		for range 2 {
			counted, err := p.TotalCounters()
			must(t, err)
			if got := counted[PassNoSocket]; got != n+1 {
				t.Errorf("%d packets without a socket, want %d", got, n+1)
			}
			must(t, p.Detach(a))
		}
	}
}
