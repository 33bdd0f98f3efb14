package statefile

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

func TestANameIsClaimedOnce(t *testing.T) {
	name := fmt.Sprint("weir-test-", os.Getpid())
	c, err := NewClaim(name)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := NewClaim(name); !errors.Is(err, ErrClaimed) {
		t.Errorf("a second time: %v", err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	c, err = NewClaim(name)
	if err != nil {
		t.Fatalf("after the end of the first: %v", err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}

// A process that tries again and again, as a service manager has it, does not get the name in the
// end: attempts do not stay in the queue of the holder.
func TestAClaimOutlivesAttempts(t *testing.T) {
	name := fmt.Sprint("weir-test-attempts-", os.Getpid())
	c, err := NewClaim(name)
	if err != nil {
		t.Fatal(err)
	}
	for n := range 2*unix.SOMAXCONN + 2 {
		if _, err := NewClaim(name); !errors.Is(err, ErrClaimed) {
			t.Fatalf("attempt %d: %v", n, err)
		}
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}

// Another user cannot keep Weir from its start by the name, of whatever kind of socket.
func TestANameOfAnotherUserIsNoClaim(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("skipped: needs root, to make a socket as another user")
	}
	for _, kind := range []int{unix.SOCK_SEQPACKET, unix.SOCK_STREAM, unix.SOCK_DGRAM} {
		name := fmt.Sprint("weir-test-", os.Getpid(), "-", kind)
		fds := make(chan int)
		go func() {
			runtime.LockOSThread() // it ends with the goroutine: its user is another
			if _, _, e := unix.RawSyscall(unix.SYS_SETRESUID, 65534, 65534, 65534); e != 0 {
				panic(e)
			}
			fd, err := unix.Socket(unix.AF_UNIX, kind|unix.SOCK_CLOEXEC, 0)
			if err == nil {
				err = unix.Bind(fd, &unix.SockaddrUnix{Name: "@" + name})
			}
			if err == nil && kind != unix.SOCK_DGRAM {
				err = unix.Listen(fd, 1)
			}
			if err != nil {
				panic(err)
			}
			fds <- fd
		}()
		fd := <-fds
		c, err := NewClaim(name)
		if err != nil {
			t.Errorf("kind %d: %v", kind, err)
		}
		if err := errors.Join(c.Close(), unix.Close(fd)); err != nil {
			t.Error(err)
		}
	}
}
