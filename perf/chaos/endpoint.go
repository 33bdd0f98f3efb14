package chaos

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os/exec"
	"sync"
	"time"

	"github.com/weirlb/weir/perf/netlab"
	"github.com/weirlb/weir/perf/netlab/workload"
)

// checkTarget is where endpoints answer health checks.
const checkTarget = 8081

// endpoint is the server of a host, with the faults of it: an echo server, and one that answers checks.
type endpoint struct {
	host  host
	at    *netlab.Namespace
	hangs sync.RWMutex // held for writing while the server hangs
}

// serve starts the server, which ends with the lab.
func (e *endpoint) serve(lab *netlab.Edge) error {
	for _, six := range []bool{false, true} {
		echo, err := e.at.Listen("tcp", netip.AddrPortFrom(e.host.addr(six), echoTarget).String())
		if err != nil {
			return err
		}
		lab.OnClose(echo.Close)
		go e.accept(echo)
		checks, err := e.at.Listen("tcp", netip.AddrPortFrom(e.host.addr(six), checkTarget).String())
		if err != nil {
			return err
		}
		s := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) { e.wait() })}
		lab.OnClose(s.Close)
		go func() { _ = s.Serve(checks) }()
	}
	return nil
}

// wait waits while the server hangs.
func (e *endpoint) wait() {
	e.hangs.RLock()
	defer e.hangs.RUnlock()
}

func (e *endpoint) accept(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go e.echo(c)
		e.wait() // as a process that is stopped, it leaves others to the kernel
	}
}

func (e *endpoint) echo(c net.Conn) {
	defer c.Close()
	buf := make([]byte, 16<<10)
	for {
		n, err := c.Read(buf)
		e.wait()
		if n > 0 {
			if _, err := c.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// hang has the process stop: the kernel goes on to accept connections, and nobody answers.
func (e *endpoint) hang(_ context.Context, hold func()) error {
	e.hangs.Lock()
	defer e.hangs.Unlock()
	hold()
	return nil
}

// fall has the host fall silent.
func (e *endpoint) fall(_ context.Context, hold func()) error {
	return e.filtered("drop", hold)
}

// refuse has the host refuse connections, as without a process that listens. Those that it has stay.
func (e *endpoint) refuse(_ context.Context, hold func()) error {
	return e.filtered("tcp flags syn / syn,ack reject with tcp reset", hold)
}

// filtered has the host filter segments to its server.
func (e *endpoint) filtered(rule string, hold func()) error {
	nft := func(text string) error {
		return e.at.Do(func() error {
			if out, err := exec.Command("nft", text).CombinedOutput(); err != nil {
				return fmt.Errorf("nft %s: %w: %s", text, err, out)
			}
			return nil
		})
	}
	if err := nft(fmt.Sprintf("table inet ill { chain in { type filter hook input priority 0; tcp dport { %d, %d } %s; }; }", echoTarget, checkTarget, rule)); err != nil {
		return err
	}
	hold()
	return nft("delete table inet ill")
}

// ofEndpoint is a fault of the endpoint at a host.
func ofEndpoint(name string, do func(*endpoint, context.Context, func()) error) func(*node, context.Context, func()) error {
	return func(n *node, ctx context.Context, hold func()) error {
		for _, e := range n.endpoints {
			if e.host.name == name {
				return do(e, ctx, hold)
			}
		}
		return errors.New("no endpoint " + name)
	}
}

// mayReach reports for a Service whether it may have the endpoint at a host.
func mayReach(name string) func(*service) bool {
	return func(s *service) bool { return !s.fixed || s.name == name }
}

// refused explains that new connections are refused where a Service may have no other endpoint.
func refused(name string) func(*failure) bool {
	return func(f *failure) bool {
		return f.what == "new" && f.kind == workload.KindRefused && mayReach(name)(f.service)
	}
}
