package chaos

import (
	"errors"
	"net"
	"sync"
	"time"
)

// gate is a listener whose connections can be delayed, held up or ended.
type gate struct {
	listen func() (net.Listener, error)
	addr   net.Addr

	mu     sync.Mutex
	inner  net.Listener // nil: nobody listens
	conns  map[*gatedConn]bool
	change chan struct{} // closed at the next change
	holed  bool
	delay  time.Duration
	closed bool
}

// newGate makes a gate upon a listener that can be made again with the same address.
func newGate(listen func(address string) (net.Listener, error)) (*gate, error) {
	l, err := listen("127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	address := l.Addr().String()
	return &gate{
		listen: func() (net.Listener, error) { return listen(address) }, addr: l.Addr(),
		inner: l, conns: map[*gatedConn]bool{}, change: make(chan struct{}),
	}, nil
}

// changed wakes every connection that waits. The caller holds mu.
func (g *gate) changed() {
	close(g.change)
	g.change = make(chan struct{})
}

// die closes the port and every connection, as the end of a server's process does.
func (g *gate) die() error {
	g.mu.Lock()
	l, conns := g.inner, g.conns
	g.inner, g.conns = nil, map[*gatedConn]bool{}
	g.mu.Unlock()
	err := l.Close()
	for c := range conns {
		_ = c.Close()
	}
	return err
}

// revive listens again.
func (g *gate) revive() error {
	l, err := g.listen()
	if err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.inner = l
	g.changed()
	return nil
}

// hole lets no byte pass, in either direction, until open. Connections stay.
func (g *gate) hole() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.holed = true
}

// slow delays every read and write.
func (g *gate) slow(by time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.delay = by
}

// open ends hole and slow.
func (g *gate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.holed, g.delay = false, 0
	g.changed()
}

// Accept implements net.Listener.
func (g *gate) Accept() (net.Conn, error) {
	for {
		g.mu.Lock()
		l, change, closed := g.inner, g.change, g.closed
		g.mu.Unlock()
		switch {
		case closed:
			return nil, net.ErrClosed
		case l == nil:
			<-change
			continue
		}
		c, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			continue // dead, or the end
		}
		if err != nil {
			return nil, err
		}
		gated := &gatedConn{Conn: c, gate: g, gone: make(chan struct{})}
		g.mu.Lock()
		g.conns[gated] = true
		g.mu.Unlock()
		return gated, nil
	}
}

// Close implements net.Listener.
func (g *gate) Close() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return nil
	}
	g.closed = true
	g.changed()
	if g.inner == nil {
		return nil
	}
	return g.inner.Close()
}

// Addr implements net.Listener.
func (g *gate) Addr() net.Addr { return g.addr }

// gatedConn is a connection through a gate.
type gatedConn struct {
	net.Conn
	gate *gate
	once sync.Once
	gone chan struct{}
}

// pass waits until the gate lets a read or write pass, or the connection is closed.
func (c *gatedConn) pass() {
	for {
		c.gate.mu.Lock()
		holed, delay, change := c.gate.holed, c.gate.delay, c.gate.change
		c.gate.mu.Unlock()
		var over <-chan time.Time
		switch {
		case delay > 0:
			over = time.After(delay)
		case !holed:
			return
		}
		select {
		case <-c.gone:
			return
		case <-over:
			return
		case <-change:
		}
	}
}

func (c *gatedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.pass()
	return n, err
}

func (c *gatedConn) Write(p []byte) (int, error) {
	c.pass()
	return c.Conn.Write(p)
}

func (c *gatedConn) Close() error {
	c.once.Do(func() {
		close(c.gone)
		c.gate.mu.Lock()
		delete(c.gate.conns, c)
		c.gate.mu.Unlock()
	})
	return c.Conn.Close()
}
