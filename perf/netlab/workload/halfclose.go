package workload

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/netip"
	"time"

	"github.com/weirlb/weir/perf/netlab"
)

// ServeHalfClosed starts a TCP server inside n that reads "BYTES SEED" until
// the client closes its direction, waits for the given time and then sends
// that many bytes of the stream: all of the answer travels on a half-closed
// connection. Closing the listener ends it.
func ServeHalfClosed(n *netlab.Namespace, address string, wait time.Duration) (net.Listener, error) {
	l, err := n.Listen("tcp", address)
	if err != nil {
		return nil, err
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				request, err := io.ReadAll(c)
				var size int64
				var seed uint64
				if err != nil {
					return
				}
				if _, err := fmt.Sscan(string(request), &size, &seed); err != nil {
					return
				}
				time.Sleep(wait)
				io.CopyN(c, NewStream(seed), size) // a client that is gone notices itself
			}()
		}
	}()
	return l, nil
}

// HalfClose asks such a server for n bytes, closes the sending direction and checks the
// answer.
func HalfClose(ctx context.Context, from *netlab.Namespace, to netip.AddrPort, n int64) error {
	const seed = 1
	c, err := from.DialContext(ctx, "tcp", to.String())
	if err != nil {
		return err
	}
	defer c.Close()
	defer shut(ctx, c)()
	if _, err := fmt.Fprint(c, n, " ", seed); err != nil {
		return fmt.Errorf("send: %w", err)
	}
	if err := c.(*net.TCPConn).CloseWrite(); err != nil {
		return fmt.Errorf("close one direction: %w", err)
	}
	h := sha256.New()
	got, err := io.Copy(h, c)
	if err != nil {
		return fmt.Errorf("after %d of %d bytes on the half-closed connection: %w", got, n, err)
	}
	if sum, want := hex.EncodeToString(h.Sum(nil)), StreamSum(seed, n); sum != want {
		return fmt.Errorf("got %d bytes with SHA-256 %s back, want %d with %s", got, sum, n, want)
	}
	return nil
}
