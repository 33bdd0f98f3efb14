package prober

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"time"
)

// verifyWithin is how long an endpoint has for an answer to Verify, of two tries.
const verifyWithin = time.Second

// Verify reports whether an endpoint is out of order, without a check that says how to ask it: by TCP it
// must accept a connection, by UDP an empty datagram must not be refused. Both are tried twice.
func Verify(ctx context.Context, protocol string, at netip.AddrPort) (err error) {
	for range 2 {
		try, cancel := context.WithTimeout(ctx, verifyWithin)
		if protocol == "UDP" {
			err = refuses(try, at)
		} else {
			err = Dialer(Straight).connect(try, &Target{At: at})
		}
		cancel()
		if err = inWords(err, verifyWithin); err == nil || errors.Is(err, ErrNode) {
			return nil
		}
	}
	return err
}

// refuses sends an empty datagram. Silence is no refusal.
func refuses(ctx context.Context, at netip.AddrPort) error {
	c, err := new(net.Dialer).DialContext(ctx, "udp", at.String())
	if err != nil {
		return err
	}
	defer c.Close()
	deadline, _ := ctx.Deadline()
	if err := c.SetDeadline(deadline); err != nil {
		return err
	}
	if _, err := c.Write(nil); err != nil {
		return err
	}
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		return err
	}
	return nil
}
