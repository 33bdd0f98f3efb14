package httpserver

import (
	"container/list"
	"net"
	"net/netip"
	"sync"

	"golang.org/x/sys/unix"
)

// Limit bounds the connections of one or more servers. A connection beyond it is taken, and another
// is closed: the oldest connection of the client that has most. So a client that holds
// connections keeps nobody out but itself, and the accept queue of the kernel is never full.
type Limit struct {
	max int

	mu      sync.Mutex
	n       int
	last    uint64             // number of a connection
	clients map[any]*list.List // of *conn, the oldest first
}

// NewLimit makes a limit of that many connections.
func NewLimit(connections int) *Limit {
	return &Limit{max: connections, clients: map[any]*list.List{}}
}

// conn is a connection that counts.
type conn struct {
	net.Conn
	limit  *Limit
	client any
	number uint64 // in the order of arrival
	place  *list.Element
	once   sync.Once
}

// NetConn is the connection itself.
func (c *conn) NetConn() net.Conn { return c.Conn }

// Close implements net.Conn.
func (c *conn) Close() error {
	c.once.Do(func() { c.limit.remove(c) })
	return c.Conn.Close()
}

// add counts a connection, and closes another if there are too many.
func (l *Limit) add(nc net.Conn) *conn {
	c := &conn{Conn: nc, limit: l, client: clientOf(nc)}
	l.mu.Lock()
	var victim *conn
	if l.n >= l.max {
		victim = l.victim()
	}
	of := l.clients[c.client]
	if of == nil {
		of = list.New()
		l.clients[c.client] = of
	}
	l.last++
	c.number, c.place = l.last, of.PushBack(c)
	l.n++
	l.mu.Unlock()
	if victim != nil {
		_ = victim.Close()
	}
	return c
}

// victim is the oldest connection of the client that has most, of several such clients the oldest.
// Preconditions: l.mu is held, and there is a connection.
func (l *Limit) victim() (v *conn) {
	most := 0
	for _, of := range l.clients {
		oldest := of.Front().Value.(*conn)
		if n := of.Len(); n > most || n == most && oldest.number < v.number {
			most, v = n, oldest
		}
	}
	return v
}

func (l *Limit) remove(c *conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	of := l.clients[c.client]
	if of.Remove(c.place); of.Len() == 0 {
		delete(l.clients, c.client)
	}
	l.n--
}

// clientOf is the client that counts for a connection: an IPv4 address, the /64 of an IPv6
// address, the user of a UNIX socket.
func clientOf(c net.Conn) any {
	if u, ok := c.(*net.UnixConn); ok {
		return userOf(u)
	}
	a, ok := c.RemoteAddr().(*net.TCPAddr)
	if !ok {
		return nil
	}
	ip := a.AddrPort().Addr().Unmap().WithZone("")
	if ip.Is4() {
		return ip
	}
	return netip.PrefixFrom(ip, 64).Masked()
}

func userOf(u *net.UnixConn) any {
	raw, err := u.SyscallConn()
	if err != nil {
		return nil
	}
	var user any
	_ = raw.Control(func(fd uintptr) { // the connection may be closed: any user then
		if cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			user = cred.Uid
		}
	})
	return user
}

// listener has its connections counted.
type listener struct {
	net.Listener
	limit *Limit
}

func (l *Limit) listener(of net.Listener) net.Listener { return &listener{of, l} }

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return l.limit.add(c), nil
}
