package tcpload

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// Bulk sends as much as the path takes, a stream per client, and counts the bytes that the
// server receives.
func (l *Load) Bulk(ctx context.Context, s *Server, settle, span time.Duration) (Outcome, error) {
	block := make([]byte, 1<<17)
	before := make(chan uint64, 1)
	go func() {
		sleep(ctx, settle)
		before <- s.Received()
	}()
	var bytes uint64
	done := make(chan struct{})
	go func() {
		defer close(done)
		from := <-before
		sleep(ctx, span)
		bytes = s.Received() - from
	}()
	o, err := l.run(ctx, settle, span, func(c *client) error {
		if c.fd < 0 {
			if err := c.open(); err != nil {
				return err
			}
		}
		if _, err := unix.Write(c.fd, block); err != nil && !errors.Is(err, unix.EINTR) {
			c.close()
			return fmt.Errorf("send: %w", err)
		}
		return nil
	})
	<-done
	o.Bytes = bytes
	return o, err
}
