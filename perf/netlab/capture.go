package netlab

import (
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// captureLimit bounds the frames of a capture; later frames are only counted.
const captureLimit = 1 << 16

// captureQueue is the memory of frames that wait to be read, in bytes.
const captureQueue = 32 << 20

// Capture keeps the frames of an interface, in both directions, cut to the first 256 bytes.
type Capture struct {
	socket *os.File
	done   chan struct{}

	mu     sync.Mutex
	frames [][]byte
	missed int
}

// NewCapture begins to keep the frames of an interface of n.
func NewCapture(n *Namespace, ifname string) (*Capture, error) {
	l, err := n.link(ifname)
	if err != nil {
		return nil, err
	}
	c := &Capture{done: make(chan struct{})}
	err = n.Do(func() error {
		fd, err := packetSocket(l.Attrs().Index)
		if err == nil {
			// On a busy machine the reader waits for its turn while frames come.
			err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, captureQueue)
			c.socket = os.NewFile(uintptr(fd), "capture "+ifname)
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("capture on %s/%s: %w", n.name, ifname, err)
	}
	go c.receive()
	return c, nil
}

func (c *Capture) receive() {
	defer close(c.done)
	buf := make([]byte, 256)
	for {
		size, err := c.socket.Read(buf)
		if err != nil {
			c.drain(buf)
			return
		}
		c.add(buf[:size])
	}
}

// drain reads the frames that are queued after the time for reading is up.
func (c *Capture) drain(buf []byte) {
	raw, err := c.socket.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) {
		for range captureLimit {
			size, err := unix.Read(int(fd), buf)
			if err != nil { // EAGAIN
				return
			}
			c.add(buf[:size])
		}
	})
}

func (c *Capture) add(frame []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.frames) < captureLimit {
		c.frames = append(c.frames, slices.Clone(frame))
	} else {
		c.missed++
	}
}

// Stop ends the capture and returns the frames, and how many more there were.
func (c *Capture) Stop() (frames [][]byte, missed int) {
	// A frame is queued before the packet reaches the socket: every packet that the caller
	// has seen is there to be read.
	c.socket.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
	<-c.done
	c.socket.Close()
	return c.frames, c.missed
}
