package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/perf/netlab"
	"github.com/weirlb/weir/perf/netlab/labtest"
	"github.com/weirlb/weir/perf/netlab/patience"
	"github.com/weirlb/weir/perf/netlab/weirtest"
	"github.com/weirlb/weir/perf/netlab/workload"
)

// within is how long anything may take that takes a fraction of a second when
// the machine is idle.
var within = patience.For(20 * time.Second)

// fixture is a lab with servers on every endpoint and Weir on the edge node.
type fixture struct {
	*netlab.Edge
	binary   string
	opts     options
	services []service
	weir     *netlab.Daemon
	admin    *api.Client
	speaker  *netlab.Responder // for the options' announced addresses
	runs     int
}

// options adapt a fixture.
type options struct {
	edge       netlab.EdgeConfig
	services   []service
	announced  []netip.Addr // for which the edge node answers ARP and NDP at eth0
	interfaces string       // of the configuration; "": eth0 and eth1
	extra      string       // more lines of the configuration
	takeover   string       // a field of the configuration's conntrack
	drain      string       // of the configuration; "": SIGTERM ends Weir at once
	env        []string     // more environment of weir run
	stopped    bool         // do not start Weir
	frontends  int          // that Weir is to serve; 0: those of the services
	wildcard   bool         // servers on the node listen on all its addresses
	noDF       bool         // clients and servers send IPv4 without DF
}

// Services of the shared fixture, one per kind of endpoint.
var (
	toAttached = service{name: "attached", index: 11, endpoints: []endpoint{attached}}
	toRouted   = service{name: "routed", index: 12, endpoints: []endpoint{routed}}
	toPod      = service{name: "pod", index: 13, endpoints: []endpoint{pod}}
	toNode     = service{name: "node", index: 14, endpoints: []endpoint{onNode}}
	toOverlay  = service{name: "overlay", index: 15, endpoints: []endpoint{overlay}}
	toAll      = service{name: "all", index: 16, endpoints: []endpoint{attached, routed, pod, onNode, overlay}}
	toNothing  = service{name: "nothing", index: 17}
	// Local policy without a local endpoint: there is one elsewhere.
	toNoLocal = service{name: "nolocal", index: 18, local: true, endpoints: []endpoint{attached}}
	// Load balancer IPs in the clients' own network, which no interface
	// holds.
	toAnnounced = service{name: "announced", index: 19, endpoints: []endpoint{attached, pod},
		lb: []netip.Addr{netlab.Host4(netlab.ClientNet, 100), netlab.Host6(netlab.ClientNet, 100)}}
)

// kinds are the Services with one endpoint each.
var kinds = []service{toAttached, toRouted, toPod, toNode, toOverlay}

var shared struct {
	sync.Mutex
	f     *fixture
	err   error // of the last try, if f is nil
	tries int
	made  time.Time
}

// sharedFixture is one fixture for all tests that leave it as it is.
func sharedFixture(t *testing.T) *fixture {
	t.Helper()
	labtest.Require(t)
	file := weirtest.Binary(t)
	shared.Lock()
	defer shared.Unlock()
	// A start that fails, fails the test that asked for it; the next one tries again.
	if shared.f == nil && shared.tries < 3 {
		shared.tries++
		shared.f, shared.err = newFixture(file, options{announced: toAnnounced.lb,
			services: append([]service{toAll, toNothing, toNoLocal, toAnnounced}, kinds...)})
		shared.made = time.Now()
	}
	if shared.f == nil {
		t.Fatal(shared.err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("weir run said:\n%s", shared.f.logTail())
		}
	})
	return shared.f
}

func closeShared() {
	if shared.f == nil {
		return
	}
	if err := shared.f.Close(); err != nil {
		fmt.Fprintln(os.Stderr, "close the shared lab:", err)
	}
}

// ownFixture is a fixture for a test that kills, stops or reconfigures Weir.
func ownFixture(t *testing.T, o options) *fixture {
	t.Helper()
	labtest.Require(t)
	f, err := newFixture(weirtest.Binary(t), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("weir run said:\n%s", f.logTail())
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
	return f
}

func newFixture(binary string, o options) (*fixture, error) {
	lab, err := netlab.NewEdge(o.edge)
	if err != nil {
		return nil, err
	}
	f := &fixture{Edge: lab, binary: binary, opts: o, services: o.services}
	f.admin = api.NewClient(f.path("weir.sock"))
	if err = f.fragmentable(); err == nil {
		err = f.serve()
	}
	if err == nil {
		err = f.announce()
	}
	if err == nil {
		err = f.configure()
	}
	if err == nil && !o.stopped {
		err = f.start()
	}
	if err != nil {
		lab.Close()
		return nil, err
	}
	return f, nil
}

func (f *fixture) path(name string) string { return filepath.Join(f.Dir(), name) }

// fragmentable has sockets that are opened from now on send IPv4 without DF, where the
// options say so.
func (f *fixture) fragmentable() error {
	var errs []error
	for _, n := range f.Namespaces() {
		if f.opts.noDF {
			errs = append(errs, n.SetSysctl("net/ipv4/ip_no_pmtu_disc", "1"))
		}
	}
	return errors.Join(errs...)
}

// announce runs a speaker for the announced addresses beside Weir, which announces none. It
// lives as long as the lab: without it clients reach these addresses only while a neighbor
// entry from earlier lasts.
func (f *fixture) announce() (err error) {
	if len(f.opts.announced) == 0 {
		return nil
	}
	if f.speaker, err = netlab.NewResponder(f.Edge.Edge, "eth0", f.opts.announced...); err != nil {
		return err
	}
	f.OnClose(f.speaker.Close)
	return nil
}

// serve starts every kind of server at every endpoint.
func (f *fixture) serve() error {
	for _, at := range []struct {
		n    *netlab.Namespace
		name string
		e    endpoint
	}{
		{f.ZoneA, "attached", attached}, {f.ZoneB, "routed", routed}, {f.Pod, "pod", pod},
		{f.Edge.Edge, "node", onNode}, {f.Remote, "overlay", overlay},
	} {
		addrs := []netip.Addr{at.e.addr(false), at.e.addr(true)}
		if f.opts.wildcard && at.e == onNode {
			addrs = []netip.Addr{netip.IPv6Unspecified()} // for both families
		}
		for _, a := range addrs {
			if err := f.serveAt(at.n, at.name, a); err != nil {
				return err
			}
		}
	}
	return nil
}

func (f *fixture) serveAt(n *netlab.Namespace, name string, addr netip.Addr) error {
	at := func(port uint16) string { return netip.AddrPortFrom(addr, port).String() }
	web, err := workload.Serve(n, name, at(httpTarget))
	if err != nil {
		return err
	}
	f.OnClose(web.Close)
	echo, err := workload.ServeEcho(n, name, at(echoTarget))
	if err != nil {
		return err
	}
	f.OnClose(echo.Close)
	half, err := workload.ServeHalfClosed(n, at(halfTarget), 500*time.Millisecond)
	if err != nil {
		return err
	}
	f.OnClose(half.Close)
	return nil
}

// configure writes the configuration and the manifests.
func (f *fixture) configure() error {
	if err := os.MkdirAll(f.path("manifests"), 0o755); err != nil {
		return err
	}
	t := &testing.T{}
	if err := os.WriteFile(f.manifest(), render(t, f.services), 0o644); err != nil {
		return err
	}
	return os.WriteFile(f.path("config.yaml"), []byte(f.config()), 0o644)
}

// config is the configuration of weir run.
func (f *fixture) config() string {
	interfaces := f.opts.interfaces
	if interfaces == "" {
		interfaces = "[{name: eth0}, {name: eth1}]"
	}
	drain := f.opts.drain
	if drain == "" {
		drain = "{notReadySeconds: 0, timeoutSeconds: 0}"
	}
	return fmt.Sprintf(`apiVersion: weir.dev/v1alpha1
kind: WeirConfiguration
nodeName: edge-1
discovery:
  manifests: {path: %s}
interfaces: %s
nodePortAddresses: ["%s/24", "%s/64"]
conntrack: {path: %s, maxFlows: 262144, %s}
admin: {socket: %s}
drain: %s
%s
`, f.path("manifests"), interfaces, netlab.Host4(netlab.ClientNet, 0), netlab.Host6(netlab.ClientNet, 0),
		f.path("conntrack"), f.opts.takeover, f.path("weir.sock"), drain, f.opts.extra)
}

func (f *fixture) manifest() string { return f.path("manifests/services.yaml") }

// command is `weir ARGS`, not yet started.
func (f *fixture) command(args ...string) *exec.Cmd {
	cmd := exec.Command(f.binary, args...)
	cmd.Env = append(os.Environ(), f.opts.env...)
	return cmd
}

// start starts `weir run` and waits until it serves what the manifests say.
func (f *fixture) start() error {
	if err := f.launch("config.yaml"); err != nil {
		return err
	}
	if err := f.served(len(f.services)); err != nil {
		return fmt.Errorf("weir run does not serve: %w\n%s", err, f.logTail())
	}
	return nil
}

// launch starts `weir run` with a configuration file of the lab.
func (f *fixture) launch(file string, args ...string) (err error) {
	f.runs++
	args = append([]string{"run", "--config", f.path(file)}, args...)
	f.weir, err = f.Edge.Edge.StartDaemon(f.command(args...), f.path(fmt.Sprintf("weir-%d.log", f.runs)))
	return err
}

// served waits until Weir has this many Services' frontends and takes their
// traffic.
func (f *fixture) served(services int) error {
	want := services * 4 * 2 * 2 // ports, families, node port and load balancer IP
	if f.opts.frontends > 0 {
		want = f.opts.frontends
	}
	return f.poll(func(ctx context.Context) error {
		list, err := f.admin.Frontends(ctx)
		if err != nil {
			return err
		}
		if len(list.Frontends) != want {
			return fmt.Errorf("%d frontends, want %d", len(list.Frontends), want)
		}
		status, err := f.admin.Status(ctx)
		if err != nil {
			return err
		}
		return status.Attached()
	})
}

// poll calls f until it returns nil, or returns its last error when it takes
// too long or Weir ends.
func (f *fixture) poll(try func(context.Context) error) error { return f.pollAfter(0, try) }

// pollAfter is poll for what comes after a time at the earliest.
func (f *fixture) pollAfter(d time.Duration, try func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), d+within)
	defer cancel()
	return f.weir.Until(ctx, try)
}

// logTail is the end of what weir run logged.
func (f *fixture) logTail() string { return f.weir.LogTail(30) }

// whatWasDropped is what Weir says of drops and flows, for failed tests.
func (f *fixture) whatWasDropped() string {
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	s, err := f.admin.Status(ctx)
	if err != nil {
		return err.Error()
	}
	return fmt.Sprintf("drops %v, flows %+v, steering %v", s.Drops, s.Flows, s.Steering)
}

// checkChecksums watches the checksum error counters of every namespace until
// the test ends.
func (f *fixture) checkChecksums(t *testing.T) {
	t.Helper()
	before := make(map[string]netlab.Counters)
	for _, n := range f.Namespaces() {
		c, err := n.Counters()
		if err != nil {
			t.Fatal(err)
		}
		before[n.Name()] = c
	}
	t.Cleanup(func() {
		for _, n := range f.Namespaces() {
			c, err := n.Counters()
			if err != nil {
				t.Error(err)
				continue
			}
			for _, k := range []string{"TcpInCsumErrors", "UdpInCsumErrors", "Udp6InCsumErrors", "IcmpInCsumErrors", "Icmp6InCsumErrors"} {
				if d := c[k] - before[n.Name()][k]; d != 0 {
					t.Errorf("%s in namespace %s grew by %d", k, n.Name(), d)
				}
			}
		}
	})
}

// inTime is a context that ends when the test's patience does.
func inTime(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

// bothFamilies runs a subtest for IPv4 and one for IPv6.
func bothFamilies(t *testing.T, test func(t *testing.T, six bool)) {
	t.Helper()
	for _, six := range []bool{false, true} {
		t.Run(family(six), func(t *testing.T) { test(t, six) })
	}
}
