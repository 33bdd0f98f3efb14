package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/perf/netlab"
	"github.com/weirlb/weir/perf/netlab/workload"
)

// longDrain is a drain that no test waits for the end of.
const longDrain = "{notReadySeconds: 600, timeoutSeconds: 600}"

// httpStatus asks an HTTP server of the edge node from outside.
func (f *fixture) httpStatus(port uint16, path string) (code int, body string, err error) {
	client := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DialContext: f.Client.DialContext, DisableKeepAlives: true}}
	r, err := client.Get(fmt.Sprintf("http://%s%s", netip.AddrPortFrom(netlab.Host4(netlab.ClientNet, 1), port), path))
	if err != nil {
		return 0, "", err
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	return r.StatusCode, string(b), err
}

// untilStatus waits until a server of the edge node answers with code.
func (f *fixture) untilStatus(t *testing.T, port uint16, path string, code int) {
	t.Helper()
	if err := f.poll(func(context.Context) error {
		got, body, err := f.httpStatus(port, path)
		if err == nil && got != code {
			err = fmt.Errorf("port %d %s answers %d, want %d: %s", port, path, got, code, body)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
}

// drainStatus is the drain as the admin socket shows it.
func (f *fixture) drainStatus() (*api.Drain, error) {
	s, err := f.admin.Status(context.Background())
	if err != nil {
		return nil, err
	}
	if s.Drain == nil || !s.Draining {
		return nil, errors.New("it does not drain")
	}
	return s.Drain, nil
}

// dialed is a new connection to an echo server through Weir.
func (f *fixture) dialed(t *testing.T, to netip.AddrPort) net.Conn {
	t.Helper()
	c, err := f.Client.DialContext(inTime(t, within), "tcp", to.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if err := workload.PingPong(c, "hello", within); err != nil {
		t.Fatal(err)
	}
	return c
}

// whoServes is the server that a new connection reaches.
func (f *fixture) whoServes(at netip.AddrPort) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	r, err := (&workload.Load{Namespace: f.Client, Targets: []netip.AddrPort{at}, Requests: 1, Timeout: 5 * time.Second}).Run(ctx)
	if err == nil {
		err = r.Err()
	}
	if err != nil {
		return "", err
	}
	for name := range r.Servers() {
		return name, nil
	}
	return "", errors.New("nobody answered")
}

// ended waits until Weir has ended by itself.
func (f *fixture) ended(t *testing.T) {
	t.Helper()
	select {
	case <-f.weir.Done():
		if code := f.weir.ExitCode(); code != 0 {
			t.Errorf("exit status %d", code)
		}
	case <-time.After(within):
		t.Fatal("it has not ended")
	}
}

// SIGTERM says first that the node is not to be sent to, and serves on while that
// is noticed. Then new connections are the kernel's, and the ones there are go on
// until they end. A connection that the kernel took outlives Weir.
func TestWireDrain(t *testing.T) {
	t.Parallel()
	f := ownFixture(t, options{services: []service{toLocalPod}, drain: "{notReadySeconds: 4, timeoutSeconds: 600}"})
	health := toLocalPod.healthPort()
	f.untilStatus(t, 9465, "/healthz", 200)
	f.untilStatus(t, health, "/", 200)
	// What the kernel has there: in place of kube-proxy.
	kernel, err := workload.ServeEcho(f.Edge.Edge, "kernel", toLocalPod.atNode(echoPort, false).String())
	if err != nil {
		t.Fatal(err)
	}
	defer kernel.Close()
	web, err := workload.Serve(f.Edge.Edge, "kernel", toLocalPod.atNode(httpPort, false).String())
	if err != nil {
		t.Fatal(err)
	}
	defer web.Close()
	conns := map[string]net.Conn{
		"node port": f.dialed(t, toLocalPod.atNode(echoPort, false)), "load balancer IP": f.dialed(t, toLocalPod.at(echoPort, false)),
		"from before, IPv6": f.dialed(t, toLocalPod.at(echoPort, true)),
	}
	if err := f.weir.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	f.untilStatus(t, 9465, "/healthz", 503)
	f.untilStatus(t, 9465, "/readyz", 503)
	f.untilStatus(t, 9465, "/livez", 200)
	f.untilStatus(t, health, "/", 503)

	// Each connection that begins and is served before the first phase is over
	// must be Weir's.
	accepted := 0
	for {
		who, askErr := f.whoServes(toLocalPod.atNode(httpPort, false))
		d, err := f.drainStatus()
		if err != nil {
			t.Fatal(err)
		}
		if !d.Accepting {
			break
		}
		if accepted++; askErr != nil || who != "pod" {
			t.Fatalf("while new connections are taken %q answered, %v", who, askErr)
		}
		f.checkAlive(t, conns, "while new connections are taken")
	}
	if accepted == 0 {
		t.Error("no connection began in the first phase: nothing was tested")
	}

	if err := f.poll(func(context.Context) error {
		who, err := f.whoServes(toLocalPod.atNode(httpPort, false))
		if err == nil && who != "kernel" {
			err = fmt.Errorf("%q serves new connections", who)
		}
		return err
	}); err != nil {
		t.Error(err)
	}
	if who, err := workload.Ask(f.Client, toLocalPod.atNode(echoPort, false), 2*time.Second); err != nil || who != "kernel" {
		t.Errorf("%q answers a datagram, %v", who, err)
	}
	begun := f.dialed(t, toLocalPod.atNode(echoPort, false)) // with the kernel
	f.checkAlive(t, conns, "after new connections are the kernel's")
	out, err := f.command("status", "--admin-socket", f.path("weir.sock")).CombinedOutput()
	if err != nil || !strings.Contains(string(out), "draining: ") || !strings.Contains(string(out), "left, ") {
		t.Errorf("weir status: %v\n%s", err, out)
	}
	if metrics := f.metrics(t); !strings.Contains(metrics, "\nweir_draining 1\n") {
		t.Errorf("the metrics do not say that it drains:\n%s", metrics)
	}
	for _, c := range conns {
		c.Close()
	}
	f.ended(t)
	if err := workload.PingPong(begun, "still there?", within); err != nil {
		t.Errorf("a connection that the kernel took, after Weir has left: %v", err)
	}
	if said := f.logTail(); !strings.Contains(said, "no connection is left") {
		t.Errorf("it said\n%s", said)
	}
}

// A connection that does not end is waited for as long as the configuration says.
func TestWireDrainTimeout(t *testing.T) {
	t.Parallel()
	f := ownFixture(t, options{services: []service{toAttached}, drain: "{notReadySeconds: 0, timeoutSeconds: 1}"})
	f.dialed(t, toAttached.at(echoPort, false))
	if err := f.weir.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	f.ended(t)
	if said := f.logTail(); !strings.Contains(said, "timeoutSeconds are over") || !strings.Contains(said, "connections=1") {
		t.Errorf("it said\n%s", said)
	}
}

// Without a connection nothing is waited for but what routers need.
func TestWireDrainWithoutConnections(t *testing.T) {
	f := ownFixture(t, options{services: []service{toAttached}, drain: "{notReadySeconds: 0, timeoutSeconds: 600}"})
	if err := f.weir.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	f.ended(t)
}

// A second SIGTERM, and SIGINT at any time, end Weir at once.
func TestWireDrainIsCutShort(t *testing.T) {
	t.Parallel()
	for name, signals := range map[string][]os.Signal{
		"SIGTERM twice":         {syscall.SIGTERM, syscall.SIGTERM},
		"SIGINT during a drain": {syscall.SIGTERM, os.Interrupt},
		"SIGINT":                {os.Interrupt},
	} {
		t.Run(name, func(t *testing.T) {
			f := ownFixture(t, options{services: []service{toAttached}, drain: longDrain})
			f.dialed(t, toAttached.at(echoPort, false))
			for i, s := range signals {
				if err := f.weir.Signal(s); err != nil {
					t.Fatal(err)
				}
				if i == 0 && len(signals) > 1 {
					f.untilStatus(t, 9465, "/healthz", 503)
					f.checkLoad(t, f.Client, toAttached.at(httpPort, false), 5)
				}
			}
			f.ended(t)
		})
	}
}

// A supervisor kills Weir when the drain takes too long. No process follows, so that nothing is
// held for it: the kernel has new connections at once, as during the drain.
func TestWireKillInTheDrainHoldsNothing(t *testing.T) {
	f := ownFixture(t, options{services: []service{toLocalPod}, extra: "death: {holdSeconds: 600}\n",
		drain: "{notReadySeconds: 0, timeoutSeconds: 600}"})
	web, err := workload.Serve(f.Edge.Edge, "kernel", toLocalPod.atNode(httpPort, false).String())
	if err != nil {
		t.Fatal(err)
	}
	defer web.Close()
	f.dialed(t, toLocalPod.atNode(echoPort, false)) // the drain waits for it
	kernelServes := func(context.Context) error {
		who, err := f.whoServes(toLocalPod.atNode(httpPort, false))
		if err == nil && who != "kernel" {
			err = fmt.Errorf("%q serves new connections", who)
		}
		return err
	}
	if err := f.weir.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := f.poll(kernelServes); err != nil {
		t.Fatal(err)
	}
	if err := f.weir.Kill(); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(within); ; {
		err := kernelServes(t.Context())
		if err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}
