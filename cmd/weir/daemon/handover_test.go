package daemon

import (
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/cmd/weir/config"
	"github.com/weirlb/weir/lb/phase"
	"github.com/weirlb/weir/perf/netlab/patience"
)

// socketPair is a connection between the processes of a handover.
func socketPair(t *testing.T) (a, b *net.UnixConn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var ends [2]*net.UnixConn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "socket")
		c, err := net.FileConn(f)
		if err = errors.Join(err, f.Close()); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		ends[i] = c.(*net.UnixConn)
	}
	return ends[0], ends[1]
}

// Sockets that come with anything but a whole left message would hold the queues of the
// interfaces: they are closed.
func TestFilesOfAFailedHandoverAreClosed(t *testing.T) {
	for name, answer := range map[string]string{
		"half a message, and the end":    `{"say":"left","sock`,
		"left without a word on sockets": `{"say":"left"}` + "\n",
		"an error":                       `{"error":"no"}` + "\n",
		"no JSON":                        "left\n",
	} {
		t.Run(name, func(t *testing.T) {
			own, other := socketPair(t)
			d := &Daemon{
				log: slog.New(slog.DiscardHandler), cfg: config.Default(), last: newPeer(own), viewed: make(chan struct{}),
				phases: phase.New(time.Now(), slog.New(slog.DiscardHandler)),
			}
			close(d.viewed)
			r, w, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			_, _, err = other.WriteMsgUnix([]byte(answer), unix.UnixRights(int(w.Fd())), nil)
			if err = errors.Join(err, w.Close(), other.CloseWrite()); err != nil {
				t.Fatal(err)
			}
			if sockets, _ := d.takeOver(t.Context()); sockets != nil {
				t.Error("sockets have come")
			}
			_ = r.SetReadDeadline(time.Now().Add(patience.For(5 * time.Second)))
			if _, err := r.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
				t.Errorf("its descriptor is open: %v", err)
			}
		})
	}
}

// Routes in a table of the kernel stay in a handover only if the next process takes them over. It
// would not know of those in another table, and routers would send here for good.
func TestKernelRoutesStayForWhoTakesThemOver(t *testing.T) {
	announcing := func(speaker string, table int) *config.Configuration {
		c := config.Default()
		c.Announce.Speaker, c.Announce.KernelTable = speaker, table
		return c
	}
	kernel := announcing(config.AnnounceKernel, 177)
	for name, c := range map[string]struct {
		last, next *config.Configuration
		stay       bool
	}{
		"the same table":    {kernel, announcing(config.AnnounceKernel, 177), true},
		"another table":     {kernel, announcing(config.AnnounceKernel, 178), false},
		"another speaker":   {kernel, announcing(config.AnnounceBGP, 177), false},
		"announces no more": {kernel, announcing(config.AnnounceOff, 177), false},
		"sessions of Weir":  {announcing(config.AnnounceBGP, 177), kernel, false},
		"no next process":   {last: kernel},
	} {
		t.Run(name, func(t *testing.T) {
			last := &Daemon{cfg: c.last}
			if c.next != nil {
				own, other := socketPair(t)
				next := &Daemon{log: slog.New(slog.DiscardHandler), cfg: c.next, last: newPeer(own), viewed: make(chan struct{}), phases: phase.New(time.Now(), slog.New(slog.DiscardHandler))}
				close(next.viewed)
				if err := other.CloseWrite(); err != nil {
					t.Fatal(err)
				}
				_, _ = next.takeOver(t.Context())
				p := newPeer(other)
				take, err := p.hear(t.Context(), sayTake, greetTime)
				if err != nil {
					t.Fatal(err)
				}
				p.adopts = take.Adopts
				last.next.Store(p)
			}
			if got := last.routesStay(); got != c.stay {
				t.Errorf("the routes stay: %v, want %v", got, c.stay)
			}
		})
	}
}
