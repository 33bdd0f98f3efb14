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
				log: slog.New(slog.DiscardHandler), last: newPeer(own), viewed: make(chan struct{}),
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
