package tcpload

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/perf/netlab"
)

// Server answers requests, or discards received data, on a port of every address of a
// namespace.
type Server struct {
	fd       int
	closed   atomic.Bool
	received atomic.Uint64
	wait     sync.WaitGroup
	// open connections, to be shut down at the end
	mu   sync.Mutex
	open map[int]bool
}

// Serve starts threads that each serve a connection at a time. With answer each message
// gets a message back; without, bytes are counted.
func Serve(n *netlab.Namespace, port uint16, threads int, answer bool) (*Server, error) {
	s := &Server{fd: -1, open: map[int]bool{}}
	err := n.Do(func() (err error) {
		if s.fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		return errors.Join(
			unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1),
			unix.SetsockoptInt(s.fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1), // inherited
			unix.Bind(s.fd, &unix.SockaddrInet4{Port: int(port)}),
			unix.Listen(s.fd, 4096))
	})
	if err != nil {
		return nil, fmt.Errorf("serve port %d: %w", port, err)
	}
	serve := s.take
	if answer {
		serve = s.answer
	}
	for range threads {
		s.wait.Go(func() { _ = n.Do(func() error { s.accept(serve); return nil }) })
	}
	return s, nil
}

func (s *Server) accept(serve func(int)) {
	for !s.closed.Load() {
		fd, _, err := unix.Accept4(s.fd, unix.SOCK_CLOEXEC)
		if err != nil {
			continue // EINVAL once closed; ECONNABORTED before
		}
		if s.keep(fd) {
			serve(fd)
		}
		s.drop(fd)
	}
}

// keep notes a connection; false at the end.
func (s *Server) keep(fd int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open[fd] = true
	return !s.closed.Load()
}

func (s *Server) drop(fd int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.open, fd)
	unix.Close(fd)
}

// answer sends a message for each received message until the client closes.
func (s *Server) answer(fd int) {
	var message [messageLen]byte
	for readFull(fd, message[:]) == nil {
		if write(fd, message[:]) != nil {
			return
		}
	}
}

// take counts received bytes until the client closes.
func (s *Server) take(fd int) {
	buf := make([]byte, 1<<18)
	for {
		n, err := unix.Read(fd, buf)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || n == 0 {
			return
		}
		s.received.Add(uint64(n))
	}
}

// Received is how many bytes have come, for servers that do not answer.
func (s *Server) Received() uint64 { return s.received.Load() }

// Close ends all connections and threads.
func (s *Server) Close() error {
	s.closed.Store(true)
	err := unix.Shutdown(s.fd, unix.SHUT_RDWR) // wakes threads in accept
	s.mu.Lock()
	for fd := range s.open {
		_ = unix.Shutdown(fd, unix.SHUT_RDWR)
	}
	s.mu.Unlock()
	s.wait.Wait()
	return errors.Join(err, unix.Close(s.fd))
}
