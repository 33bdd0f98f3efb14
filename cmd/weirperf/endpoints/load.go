package endpoints

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/weirlb/weir/perf/netlab"
)

const (
	// perSecond is the rate of new connections.
	perSecond = 200
	// giveUp is how long the client waits for an answer.
	giveUp = 20 * time.Second
	// late is the time that a connection takes no longer than, unless it met the endpoint that does not serve.
	late = 500 * time.Millisecond
)

// connection is a connection of the client, begun at a time since the fault.
type connection struct {
	begun, took time.Duration
	err         error
}

// connect begins connections until ctx ends, and returns all of them when the last has ended.
func connect(ctx context.Context, client *netlab.Namespace, to netip.AddrPort, fault func() time.Time) []connection {
	var (
		mu   sync.Mutex
		list []connection
		all  sync.WaitGroup
	)
	tick := time.NewTicker(time.Second / perSecond)
	defer tick.Stop()
	for ctx.Err() == nil {
		all.Go(func() {
			began := time.Now()
			err := ask(client, to)
			took := time.Since(began)
			mu.Lock()
			defer mu.Unlock()
			list = append(list, connection{time.Duration(began.UnixNano()), took, err})
		})
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
	all.Wait()
	at := time.Duration(fault().UnixNano())
	for i := range list {
		list[i].begun -= at
	}
	return list
}

// ask opens a connection and waits for the answer.
func ask(client *netlab.Namespace, to netip.AddrPort) error {
	ctx, cancel := context.WithTimeout(context.Background(), giveUp)
	defer cancel()
	c, err := client.DialContext(ctx, "tcp4", to.String())
	if err != nil {
		return err
	}
	defer c.Close()
	_ = c.(*net.TCPConn).SetLinger(0) // no TIME_WAIT: there are many connections
	if deadline, ok := ctx.Deadline(); ok {
		_ = c.SetDeadline(deadline)
	}
	var answer [1]byte
	_, err = io.ReadFull(c, answer[:])
	return err
}

// serveAt is the process of an endpoint: it answers a connection with a byte, and waits for its end.
func serveAt(ctx context.Context, address string) error {
	signal.Ignore(syscall.SIGPIPE)
	l, err := net.Listen("tcp4", address)
	if err != nil {
		return err
	}
	context.AfterFunc(ctx, func() { l.Close() })
	fmt.Fprintln(os.Stdout, "serving")
	for {
		c, err := l.Accept()
		if err != nil {
			return errors.Join(ctx.Err(), err)
		}
		go func() {
			defer c.Close()
			if _, err := c.Write([]byte{1}); err == nil {
				_ = c.SetDeadline(time.Now().Add(time.Minute))
				_, _ = io.Copy(io.Discard, c)
			}
		}()
	}
}
