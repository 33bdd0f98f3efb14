package workload

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/weirlb/weir/perf/netlab"
)

// WhoAreYou is the datagram that a UDP echo server answers with its name; it
// echoes all others.
const WhoAreYou = "who are you?"

// Echo is a TCP and UDP echo server.
type Echo struct {
	tcp     net.Listener
	udp     net.PacketConn
	serving sync.WaitGroup

	mu    sync.Mutex
	conns map[net.Conn]bool
}

// ServeEcho starts an echo server inside n for TCP and UDP on a numeric address.
// "[::]:port" serves both families. A TCP connection is echoed until the client closes
// its direction; then the server closes its own.
func ServeEcho(n *netlab.Namespace, name, address string) (*Echo, error) {
	tcp, err := n.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("echo server %s: %w", name, err)
	}
	udp, err := n.ListenPacket("udp", address)
	if err != nil {
		tcp.Close()
		return nil, fmt.Errorf("echo server %s: %w", name, err)
	}
	e := &Echo{tcp: tcp, udp: udp, conns: make(map[net.Conn]bool)}
	e.serving.Go(e.serveTCP)
	e.serving.Go(func() { e.serveUDP(name) })
	return e, nil
}

func (e *Echo) serveTCP() {
	for {
		c, err := e.tcp.Accept()
		if err != nil {
			return
		}
		e.mu.Lock()
		e.conns[c] = true
		e.mu.Unlock()
		e.serving.Go(func() {
			io.Copy(c, c)
			c.Close()
			e.mu.Lock()
			delete(e.conns, c)
			e.mu.Unlock()
		})
	}
}

func (e *Echo) serveUDP(name string) {
	buf := make([]byte, 64<<10)
	for {
		n, from, err := e.udp.ReadFrom(buf)
		if err != nil {
			return
		}
		answer := buf[:n]
		if string(answer) == WhoAreYou {
			answer = []byte(name)
		}
		e.udp.WriteTo(answer, from) // a client that is gone cannot be told
	}
}

// Close ends the server and all connections.
func (e *Echo) Close() error {
	e.tcp.Close()
	e.udp.Close()
	e.mu.Lock()
	for c := range e.conns {
		c.Close()
	}
	e.mu.Unlock()
	e.serving.Wait()
	return nil
}

// EchoReport is the outcome of a series of datagrams.
type EchoReport struct {
	Sent, Lost, Corrupt int
}

// CheckEcho sends a datagram of each size from least to most and compares
// the answers. A datagram without an answer within the given time is lost; it
// is not sent again. After ten losses CheckEcho gives up.
func CheckEcho(c net.Conn, least, most int, within time.Duration) (EchoReport, error) {
	var r EchoReport
	want, got := make([]byte, most), make([]byte, 64<<10)
	for size := least; size <= most && r.Lost < 10; size++ {
		NewStream(uint64(size)).Read(want[:size])
		if _, err := c.Write(want[:size]); err != nil {
			return r, err
		}
		r.Sent++
		if err := c.SetReadDeadline(time.Now().Add(within)); err != nil {
			return r, err
		}
		n, err := c.Read(got)
		switch {
		case err != nil:
			r.Lost++
		case !bytes.Equal(got[:n], want[:size]):
			r.Corrupt++
		}
	}
	return r, nil
}

// Ask sends WhoAreYou from a new socket and returns the server's name.
func Ask(n *netlab.Namespace, to netip.AddrPort, within time.Duration) (string, error) {
	var name string
	err := n.Do(func() error {
		c, err := net.Dial("udp", to.String())
		if err != nil {
			return err
		}
		defer c.Close()
		if err := c.SetDeadline(time.Now().Add(within)); err != nil {
			return err
		}
		if _, err := io.WriteString(c, WhoAreYou); err != nil {
			return err
		}
		buf := make([]byte, 256)
		size, err := c.Read(buf)
		name = string(buf[:size])
		return err
	})
	return name, err
}
