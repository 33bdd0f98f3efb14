// Package healthcheck serves the health checks of external load balancers per
// Service: on spec.healthCheckNodePort of a Service with externalTrafficPolicy:
// Local, with kube-proxy's answers (200 while the node has ready endpoints of the
// Service, else 503).
package healthcheck

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/weirlb/weir/cmd/weir/httpserver"
	"github.com/weirlb/weir/discovery"
)

// maxConnections is the most checks at the same time, of all Services together: a tenant can make
// Services.
const maxConnections = 512

// Config has the addresses and the answers.
type Config struct {
	// NodeName decides which endpoints are local.
	NodeName string
	// Healthy tells whether Weir works; it is asked for every check.
	Healthy func() bool
	// Own is the field of the configuration that has Weir itself listen on a port, "" if none
	// does; nil: none does for any port.
	Own func(port uint16) string
	Log *slog.Logger
	// Retry is how often a port that is in use is tried again (default
	// 10 s): kube-proxy may hold it, with the same answers.
	Retry time.Duration
}

// Checks are the servers of all Services.
type Checks struct {
	cfg   Config
	limit *httpserver.Limit // of all servers together

	mu        sync.Mutex
	addresses []netip.Addr // nil: all of the node
	checks    map[discovery.ServiceName]*check
	readiness Readiness
	closed    bool
}

// check has the servers of a Service.
type check struct {
	name      discovery.ServiceName
	port      uint16
	svc       *discovery.Service
	local     atomic.Pointer[counts]
	servers   []*httpserver.Server
	listening []netip.Addr
	err       error
}

// counts are a Service's endpoints, per address family (IPv4 first).
type counts struct {
	any   [2]bool  // the Service has this family
	local [2]int64 // ready ones on this node
}

// New makes Checks without any Service.
func New(cfg Config) *Checks {
	if cfg.Retry <= 0 {
		cfg.Retry = 10 * time.Second
	}
	if cfg.Own == nil {
		cfg.Own = func(uint16) string { return "" }
	}
	return &Checks{cfg: cfg, limit: httpserver.NewLimit(maxConnections), checks: map[discovery.ServiceName]*check{}, readiness: asItIs{}}
}

// Run retries failed listeners, and closes everything when ctx ends.
func (c *Checks) Run(ctx context.Context) error {
	tick := time.NewTicker(c.cfg.Retry)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			c.close()
			return nil
		case <-tick.C:
		}
		c.mu.Lock()
		for _, k := range c.checks {
			if k.err != nil {
				c.open(k)
			}
		}
		c.mu.Unlock()
	}
}

func (c *Checks) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	for _, k := range c.checks {
		k.close()
	}
	clear(c.checks)
}

// SetAddresses has the ports served on these addresses, as kube-proxy does
// with its nodePortAddresses; nil is every address of the node.
func (c *Checks) SetAddresses(addrs []netip.Addr) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if slices.Equal(addrs, c.addresses) {
		return
	}
	c.addresses = slices.Clone(addrs)
	for _, k := range c.checks {
		k.close()
		c.open(k)
	}
}

// Readiness has the endpoints of a Service as the node uses them.
type Readiness interface {
	Of(*discovery.Service) *discovery.Service
}

type asItIs struct{}

func (asItIs) Of(svc *discovery.Service) *discovery.Service { return svc }

// SetReadiness has the checks count the endpoints that are ready by r. It must be called again when r
// may say another thing of any Service.
func (c *Checks) SetReadiness(r Readiness) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.readiness = r
	for _, k := range c.checks {
		k.local.Store(c.count(k.svc))
	}
}

// Recount counts the endpoints of Services again, of which Readiness says another thing.
func (c *Checks) Recount(names []discovery.ServiceName) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, name := range names {
		if k := c.checks[name]; k != nil {
			k.local.Store(c.count(k.svc))
		}
	}
}

// Apply follows a change of Services.
func (c *Checks) Apply(up *discovery.Update) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return
	}
	for _, name := range up.Deleted {
		c.remove(name)
	}
	// Ports that are given up come first: another Service may have taken a port over.
	var opened []*check
	for _, svc := range up.Put {
		if k := c.checks[svc.Name]; k != nil && k.port != portOf(svc) {
			c.remove(svc.Name)
		}
	}
	for _, svc := range up.Put {
		if portOf(svc) == 0 {
			continue
		}
		k := c.checks[svc.Name]
		if k == nil {
			k = &check{name: svc.Name, port: portOf(svc)}
			c.checks[svc.Name] = k
			opened = append(opened, k)
		}
		k.svc = svc
		k.local.Store(c.count(svc))
	}
	for _, k := range opened {
		c.open(k)
	}
}

// portOf is the port on which checks of a Service are answered, 0 for none. The kernel serves a refused
// Service, whose endpoints are not known here.
func portOf(svc *discovery.Service) uint16 {
	if svc.Refused != "" {
		return 0
	}
	return svc.HealthCheckNodePort
}

func (c *Checks) remove(name discovery.ServiceName) {
	if k := c.checks[name]; k != nil {
		k.close()
		delete(c.checks, name)
	}
}

// Fault is why the port of a Service is not served now.
type Fault struct {
	Service discovery.ServiceName
	Port    uint16
	Err     error
	// Shared is true when another process listens on the port: kube-proxy
	// most likely, with the same answers.
	Shared bool
}

// Faults are the ports that are not served, in no order.
func (c *Checks) Faults() []Fault {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []Fault
	for _, k := range c.checks {
		if k.err != nil {
			out = append(out, c.fault(k))
		}
	}
	return out
}

// fault says why a port is not served. Another Service, or Weir's own listener, gives other answers
// than kube-proxy. Preconditions: c.mu is held, k.err is not nil.
func (c *Checks) fault(k *check) Fault {
	f := Fault{Service: k.name, Port: k.port, Err: k.err}
	if !errors.Is(k.err, syscall.EADDRINUSE) {
		return f
	}
	for _, other := range c.checks {
		if other != k && other.port == k.port && len(other.listening) > 0 {
			f.Err = fmt.Errorf("port %d is the healthCheckNodePort of Service %s, which answers there", k.port, other.name)
			return f
		}
	}
	if own := c.cfg.Own(k.port); own != "" {
		f.Err = fmt.Errorf("port %d is Weir's own (%s), which answers there", k.port, own)
		return f
	}
	f.Shared = true
	return f
}

// count counts addresses with a ready endpoint on this node. Endpoints that only finish
// open connections do not count: the load balancer in front is to choose
// another node by then. Preconditions: c.mu is held.
func (c *Checks) count(svc *discovery.Service) *counts {
	node := c.cfg.NodeName
	svc = c.readiness.Of(svc)
	n := &counts{any: [2]bool{svc.Families&discovery.IPv4 != 0, svc.Families&discovery.IPv6 != 0}}
	seen := map[netip.Addr]bool{}
	for i := range svc.Ports {
		for j := range svc.Ports[i].Endpoints {
			e := &svc.Ports[i].Endpoints[j]
			addr := e.AddrPort.Addr()
			f := family(addr)
			n.any[f] = true
			if e.Ready && e.NodeName == node && node != "" && !seen[addr] {
				seen[addr] = true
				n.local[f]++
			}
		}
	}
	return n
}

func family(a netip.Addr) int {
	if a.Is4() || a.Is4In6() {
		return 0
	}
	return 1
}

// asked is the count for a check that came to a local address: in kube-proxy a dual-stack
// Service has two proxies, for IPv4 and IPv6. A check over a family that the
// Service lacks is answered with the other family's count.
func (c *counts) asked(at netip.Addr) int64 {
	if f := family(at); c.any[f] {
		return c.local[f]
	}
	return max(c.local[0], c.local[1])
}

// open listens where the check does not yet. Preconditions: c.mu is held.
func (c *Checks) open(k *check) {
	addrs := c.addresses
	if addrs == nil {
		addrs = []netip.Addr{netip.IPv6Unspecified()} // both families
	}
	var err error
	for _, a := range addrs {
		if slices.Contains(k.listening, a) {
			continue
		}
		l, e := net.Listen("tcp", netip.AddrPortFrom(a, k.port).String())
		if errors.Is(e, syscall.EAFNOSUPPORT) && a == netip.IPv6Unspecified() {
			l, e = net.Listen("tcp4", netip.AddrPortFrom(netip.IPv4Unspecified(), k.port).String())
		}
		if e != nil {
			if err != nil {
				e = fmt.Errorf("%w; %w", err, e)
			}
			err = e
			continue
		}
		srv := httpserver.New(c.handler(k), httpserver.Options{Limit: c.limit, Once: true, Log: c.cfg.Log})
		k.servers, k.listening = append(k.servers, srv), append(k.listening, a)
		go func() {
			if err := srv.Serve(l); err != nil {
				c.cfg.Log.Error("health checks of a Service end", "service", k.name, "port", k.port, "err", err)
			}
		}()
	}
	first := err != nil && k.err == nil
	k.err = err
	if !first {
		return
	}
	f := c.fault(k)
	if f.Shared {
		c.cfg.Log.Info("the health check port of a Service is in use, most likely by kube-proxy, which answers there", "service", k.name, "port", k.port)
		return
	}
	c.cfg.Log.Error("health check port of a Service", "service", k.name, "port", k.port, "err", f.Err)
}

func (k *check) close() {
	for _, s := range k.servers {
		_ = s.Close()
	}
	k.servers, k.listening, k.err = nil, nil, nil
}

// handler answers as kube-proxy does, to the byte.
func (c *Checks) handler(k *check) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n, healthy := k.local.Load().asked(localAddr(r)), c.cfg.Healthy()
		h := w.Header()
		h.Set("Content-Type", "application/json")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("X-Load-Balancing-Endpoint-Weight", strconv.FormatInt(n, 10))
		if n == 0 || !healthy {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		_, _ = io.WriteString(w, body(k.name, n, healthy)) // the asker may be gone
	})
}

// localAddr is the address that a request came to.
func localAddr(r *http.Request) netip.Addr {
	if a, ok := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr); ok {
		return a.AddrPort().Addr().Unmap()
	}
	return netip.Addr{}
}

func body(name discovery.ServiceName, local int64, healthy bool) string {
	return fmt.Sprintf(`{
	"service": {
		"namespace": %q,
		"name": %q
	},
	"localEndpoints": %d,
	"serviceProxyHealthy": %v
}`, name.Namespace, name.Name, local, healthy)
}
