package fleet

import (
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
)

// datagrams is constant traffic of clients, and how much of it was answered.
type datagrams struct {
	sent, answered atomic.Uint64
	stop           chan struct{}
	senders        sync.WaitGroup
	conns          []net.Conn
}

const (
	socketsPerTarget = 4 // that a router spreads
	sendEvery        = 20 * time.Millisecond
)

// echoDatagrams answers datagrams to the addresses of endpoints.
func (b *bed) echoDatagrams(hosts []netip.Addr) {
	b.t.Helper()
	for _, a := range hosts {
		c, err := b.Server.ListenPacket("udp", netip.AddrPortFrom(a, port).String())
		must(b.t, err)
		b.OnClose(c.Close)
		go func() {
			buf := make([]byte, 64)
			for {
				n, from, err := c.ReadFrom(buf)
				if err != nil {
					return
				}
				_, _ = c.WriteTo(buf[:n], from)
			}
		}()
	}
}

// sendDatagrams sends to all targets until the end.
func (b *bed) sendDatagrams(targets []netip.Addr) *datagrams {
	b.t.Helper()
	d := &datagrams{stop: make(chan struct{})}
	for _, a := range targets {
		for range socketsPerTarget {
			c, err := b.Client.DialContext(b.t.Context(), "udp", netip.AddrPortFrom(a, port).String())
			must(b.t, err)
			b.OnClose(c.Close)
			d.conns = append(d.conns, c)
			go d.receive(c)
		}
	}
	d.senders.Go(d.send)
	return d
}

func (d *datagrams) receive(c net.Conn) {
	buf := make([]byte, 64)
	for {
		n, err := c.Read(buf)
		if n > 0 {
			d.answered.Add(1)
		}
		if e, ok := err.(net.Error); err != nil && (!ok || !refused(e)) {
			return
		}
	}
}

// refused reports whether a datagram was answered by an ICMP error, after which a socket goes on.
func refused(err net.Error) bool {
	op, ok := err.(*net.OpError)
	return ok && op.Err != net.ErrClosed
}

func (d *datagrams) send() {
	tick := time.NewTicker(sendEvery)
	defer tick.Stop()
	for {
		select {
		case <-d.stop:
			return
		case <-tick.C:
		}
		for i, c := range d.conns {
			if _, err := c.Write([]byte("over the fleet")); err == nil { // else nothing was sent
				d.sent.Add(1)
			}
			if i%16 == 15 {
				time.Sleep(time.Millisecond) // no bursts
			}
		}
	}
}

// end stops the senders, and waits for the last answers.
func (d *datagrams) end() {
	close(d.stop)
	d.senders.Wait()
	for last := uint64(0); d.answered.Load() != last; time.Sleep(200 * time.Millisecond) {
		last = d.answered.Load()
	}
}
