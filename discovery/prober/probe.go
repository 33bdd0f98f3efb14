// Package prober sends the probes of active health checks to endpoints, on time and no more than a
// node can bear. It uses sockets of the kernel: no packet of a Service waits for a probe.
package prober

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/weirlb/weir/discovery/probe"
)

// Via is the path to an endpoint where packets of its Service have another than those of the node: the
// endpoint gets them with the frontend's address. The zero Via is none.
type Via struct {
	Mode     string // "l2dsr", "ipip", "gue"
	Frontend netip.Addr
}

// Target is an endpoint and port with a check.
type Target struct {
	At    netip.AddrPort
	Check *probe.Check
	Via   Via
}

// To is the address that the endpoint is asked at.
func (t *Target) To() netip.AddrPort {
	if t.Via.Frontend.IsValid() {
		return netip.AddrPortFrom(t.Via.Frontend, t.At.Port())
	}
	return t.At
}

// String is the address, and the path unless it is the node's own.
func (t Target) String() string {
	if t.Via == (Via{}) {
		return t.At.String()
	}
	return fmt.Sprintf("%s by %s to %s", t.At, t.Via.Mode, t.To())
}

// Dialer connects to a target by "tcp" or "udp", also by the path of Via. Errors about the node wrap
// ErrNode. A connection of TCP has the method SetLinger of net.TCPConn.
type Dialer func(ctx context.Context, network string, t *Target) (net.Conn, error)

// Straight is the Dialer of targets without Via.
func Straight(ctx context.Context, network string, t *Target) (net.Conn, error) {
	if t.Via != (Via{}) {
		return nil, fmt.Errorf("%w: no path by %s", ErrNode, t.Via.Mode)
	}
	return new(net.Dialer).DialContext(ctx, network, t.At.String())
}

// Probe does the check of a target once. An error is why the endpoint fails. It returns within the
// check's timeout, and leaves no connection open.
func (d Dialer) Probe(ctx context.Context, t *Target) error {
	ctx, cancel := context.WithTimeout(ctx, t.Check.Timeout)
	defer cancel()
	var err error
	switch t.Check.Kind {
	case probe.TCP:
		err = d.connect(ctx, t)
	case probe.HTTP:
		err = d.get(ctx, t)
	case probe.GRPC:
		err = d.ask(ctx, t)
	case probe.UDP:
		err = d.send(ctx, t)
	}
	// An answer may come after the time, while the connection is closed: a TLS server that hangs sees the
	// close-notify alert first, and answers.
	if err == nil && errors.Is(ctx.Err(), context.DeadlineExceeded) {
		err = ctx.Err()
	}
	return inWords(err, t.Check.Timeout)
}

// dial connects to the endpoint, whatever the caller was told to connect to. The end of a connection is
// a RST: an endpoint keeps no state of a probe, and the node no port.
func (d Dialer) dial(t *Target) func(ctx context.Context, network, addr string) (net.Conn, error) {
	return func(ctx context.Context, _, _ string) (net.Conn, error) {
		c, err := d(ctx, "tcp", t)
		if err != nil {
			return nil, err
		}
		return c, c.(interface{ SetLinger(seconds int) error }).SetLinger(0)
	}
}

func (d Dialer) connect(ctx context.Context, t *Target) error {
	c, err := d.dial(t)(ctx, "", "")
	if c != nil {
		err = errors.Join(err, c.Close())
	}
	return err
}

// userAgent names the prober in the logs of endpoints.
const userAgent = "weir-probe"

// get asks by HTTP/1.1, over a connection of its own. As with the kubelet, certificates are not verified,
// and a redirection is success: it is not followed.
func (d Dialer) get(ctx context.Context, to *Target) error {
	c, scheme := to.Check, "http"
	if c.TLS {
		scheme = "https"
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, scheme+"://"+to.To().String()+c.Path, nil)
	if err != nil {
		return err
	}
	r.Host = c.Host
	r.Header.Set("User-Agent", userAgent)
	r.Header.Set("Accept", "*/*")
	for _, h := range c.Headers {
		if strings.EqualFold(h.Name, "Host") {
			r.Host = h.Value
		} else {
			r.Header.Set(h.Name, h.Value)
		}
	}
	name, _, err := net.SplitHostPort(r.Host)
	if err != nil {
		name = r.Host
	}
	t := &http.Transport{
		DialContext: d.dial(to), DisableKeepAlives: true, DisableCompression: true, MaxResponseHeaderBytes: 64 << 10,
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true, ServerName: name}, // as the kubelet
	}
	defer t.CloseIdleConnections()
	answer, err := t.RoundTrip(r)
	if err != nil {
		return err
	}
	answer.Body.Close()
	if answer.StatusCode < 200 || answer.StatusCode >= 400 {
		return fmt.Errorf("HTTP status %d", answer.StatusCode)
	}
	return nil
}

// maxDatagram is the largest answer of UDP that is looked at.
const maxDatagram = 4096

// send asks by UDP. Answers that are not as expected do not count: the next may be.
func (d Dialer) send(ctx context.Context, t *Target) error {
	conn, err := d(ctx, "udp", t)
	if err != nil {
		return err
	}
	defer conn.Close()
	if deadline, ok := ctx.Deadline(); ok {
		if err := conn.SetDeadline(deadline); err != nil {
			return err
		}
	}
	if _, err := conn.Write([]byte(t.Check.Send)); err != nil {
		return err
	}
	answer, answered := make([]byte, maxDatagram), false
	for {
		n, err := conn.Read(answer)
		switch {
		case err != nil && answered:
			return errors.New("the answer is not as expected")
		case err != nil:
			return err
		case strings.Contains(string(answer[:n]), t.Check.Expect):
			return nil
		}
		answered = true
	}
}

// ErrNode is of a probe that the node could not send: it says nothing about the endpoint.
var ErrNode = errors.New("the node cannot send the probe")

// ofNode are errors of system calls for want of something of the node.
var ofNode = []syscall.Errno{
	syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM, syscall.EADDRNOTAVAIL, syscall.EPERM, syscall.EACCES, syscall.EINVAL,
}

// inWords is an error as operators read it: a few words that do not change from probe to probe.
func inWords(err error, timeout time.Duration) error {
	if err == nil || errors.Is(err, ErrNode) {
		return err
	}
	for _, e := range ofNode {
		if errors.Is(err, e) {
			return fmt.Errorf("%w: %w", ErrNode, e)
		}
	}
	var plain tls.RecordHeaderError
	switch {
	case errors.Is(err, context.Canceled):
		return ErrNode
	case errors.Is(err, syscall.ECONNREFUSED):
		return errors.New("connection refused")
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH):
		return errors.New("no route, or no neighbor answers")
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return errors.New("connection reset")
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Errorf("no answer in %v", timeout)
	case errors.As(err, &plain):
		return errors.New("the answer is not TLS")
	}
	text := err.Error()
	if op := (*net.OpError)(nil); errors.As(err, &op) {
		text = op.Err.Error()
	}
	const most = 120
	if len(text) > most {
		text = strings.ToValidUTF8(text[:most], "") + "..."
	}
	return errors.New(strings.Map(printable, text))
}

// printable replaces characters of an endpoint's answer that would move a terminal.
func printable(r rune) rune {
	if r < ' ' || r == 0x7f {
		return ' '
	}
	return r
}
