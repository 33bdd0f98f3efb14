package netlab

import (
	"fmt"
	"os"
	"slices"
	"sync"
	"time"
)

// captureLimit bounds the frames of a capture; later frames are only counted.
const captureLimit = 1 << 16

// Capture keeps the frames of an interface, in both directions, cut to the first 256 bytes.
type Capture struct {
	socket *os.File
	done   chan struct{}

	mu     sync.Mutex
	frames [][]byte
	missed int
}

// Capture begins to keep ifname's frames.
func (n *Namespace) Capture(ifname string) (*Capture, error) {
	l, err := n.link(ifname)
	if err != nil {
		return nil, err
	}
	c := &Capture{done: make(chan struct{})}
	err = n.Do(func() error {
		fd, err := packetSocket(l.Attrs().Index)
		if err == nil {
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
			return
		}
		c.mu.Lock()
		if len(c.frames) < captureLimit {
			c.frames = append(c.frames, slices.Clone(buf[:size]))
		} else {
			c.missed++
		}
		c.mu.Unlock()
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
