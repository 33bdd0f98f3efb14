// Package probepath leads connections of the node's own to endpoints by the path of client packets in
// the modes without translation: through the tunnel (ipip, gue) or the MAC address (l2dsr) of an
// endpoint, to the frontend's address. They fail where an endpoint does not decapsulate, or lacks the
// address.
//
// The kernel does TCP, with the address of the node that it would use towards the endpoint. Of a socket
// it needs two things that it does not have: several endpoints behind the same address, and packets in
// a tunnel.
//
//	socket, mark --rule--> table: frontend's address via weir-probe
//	weir-probe ===veth=== weir-probed --packet socket--> Path: endpoint of the local port
//	    outer header, raw socket --> endpoint --> answers of the frontend's address to the socket
//
// Mark, rule and table are for probes alone: the address of a frontend is the choice of the author of a
// Service, and other marked packets must not follow it. Answers take no part in it. Frames enter
// weir-probed with the MAC address of another: the kernel ignores them there.
//
// The alternatives: devices of the kernel (ipip, ip6tnl, fou) are modules that a node may lack, and send
// GUE to endpoints of routes alone; a TUN device needs a file that a container does not have; TCP in
// this process would be answered by the kernel with RST; a flow through a worker would cost the packet
// path a look at each SYN.
//
// Pair, routes and rules outlive a process that is killed: Cleanup removes them.
package probepath

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/header"
	"github.com/weirlb/weir/lb/markrule"
	"github.com/weirlb/weir/lb/vethpair"
)

// Names of the ends of the pair: packets enter by the first.
var names = [2]string{"weir-probe", "weir-probed"}

const (
	// mtu is that of the pair: with an outer header packets fit every path of IPv6 but the narrowest.
	mtu = 1280
	// maxRoutes is how many frontends have a route before those that are not in use lose theirs.
	maxRoutes = 1024
	// lingers is how long the end of a connection, a RST, takes to the packet socket at most.
	lingers = time.Second
	// routeIdle is how long a route stays after the last connection: each change of routes has all
	// programs that follow them read them again.
	routeIdle = time.Minute
	// addrGenNone is IN6_ADDR_GEN_MODE_NONE: the kernel makes no link-local address.
	addrGenNone = 1
)

// ErrNode is of a connection that the node cannot make: it says nothing about the endpoint.
var ErrNode = errors.New("no path for probes")

// Config is about the node.
type Config struct {
	// Mark is the bits of the packet mark of probes, Table the routing table for them; a Mark of 0
	// leaves them out.
	Mark            uint32
	Table           int
	GUEZeroChecksum bool
	// Beside leaves a pair that is there to its process, and makes no connection then.
	Beside bool
	Log    *slog.Logger
}

// Target is where a connection goes.
type Target struct {
	Mode     conntrack.Mode // one of those without translation
	Endpoint netip.Addr
	Frontend netip.AddrPort // with the port of the endpoint that is meant
}

// Path connects. Nothing is there before the first connection.
type Path struct {
	cfg  Config
	mark markrule.Rule
	idle time.Duration // routeIdle, except in tests

	mu       sync.Mutex
	open     *device // nil: not open
	last     *device // the last that was open, for Close
	flows    map[key]*flow
	routes   map[netip.Addr]*routed // by frontend's address
	ruled    map[int]bool           // families that have the rule; true: this Path has made it
	finished chan struct{}          // closed when the reader has ended
}

// key is the local side of a connection.
type key struct {
	proto uint8
	local netip.AddrPort
}

// flow is a connection.
type flow struct {
	Target
	egress
	routed *routed
	spread uint32      // differs from that of other connections; see header.Encap
	sent   atomic.Bool // a packet of it
	mu     sync.Mutex
	err    error // the first of its packets that could not be sent
}

func (f *flow) fail(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err == nil {
		f.err = err
	}
}

func (f *flow) failed() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.err
}

// New makes a Path, to be used in the network namespace of its callers.
func New(cfg Config) *Path {
	return &Path{
		cfg: cfg, idle: routeIdle, flows: map[key]*flow{}, routes: map[netip.Addr]*routed{}, ruled: map[int]bool{},
		mark: markrule.Rule{
			Priority: markrule.Probes, Mark: cfg.Mark, Table: cfg.Table,
			MarkField: "hostVeth.probeMark", TableField: "hostVeth.probeTable",
		},
	}
}

// Dial connects by "tcp" or "udp". Errors wrap ErrNode, or are those of net.Dialer.
func (p *Path) Dial(ctx context.Context, network string, t Target) (net.Conn, error) {
	r, err := p.prepare(t.Frontend.Addr())
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNode, err)
	}
	f, k := &flow{Target: t, routed: r}, key{proto: header.ProtoTCP}
	if f.egress, err = findEgress(ctx, t); err != nil {
		p.forget(k, f)
		return nil, err
	}
	if network == "udp" {
		k.proto = header.ProtoUDP
	}
	d := net.Dialer{Control: func(_, _ string, c syscall.RawConn) (err error) {
		return errors.Join(c.Control(func(fd uintptr) {
			if k.local, err = p.bind(int(fd), f.inner); err == nil {
				f.spread = uint32(k.local.Port()) * 0x9e3779b1 // the golden ratio: neighbors end up far apart
				p.mu.Lock()
				p.flows[k] = f
				p.mu.Unlock()
			}
		}), err)
	}}
	c, err := d.DialContext(ctx, network, t.Frontend.String())
	if network != "udp" {
		err = p.passed(f, err)
	}
	if err != nil {
		if c != nil {
			err = errors.Join(err, c.Close())
		}
		p.forget(k, f)
		return nil, err
	}
	return &conn{Conn: c, path: p, key: k, flow: f}, nil
}

// passed is the error of an answer to a connection, or of silence: it counts for nothing where the
// packets went elsewhere. Then pair and routes are made again.
func (p *Path) passed(f *flow, err error) error {
	if e := f.failed(); e != nil {
		return e
	}
	if f.sent.Load() || errors.Is(err, context.Canceled) {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.open != nil {
		p.renew()
	}
	return fmt.Errorf("%w: packets to %s do not enter %s; it is made again", ErrNode, f.Frontend, names[0])
}

// bind gives a socket the mark and a local address.
func (p *Path) bind(fd int, a netip.Addr) (netip.AddrPort, error) {
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK, int(p.cfg.Mark)); err != nil {
		return netip.AddrPort{}, os.NewSyscallError("SO_MARK", err)
	}
	var sa unix.Sockaddr = &unix.SockaddrInet6{Addr: a.As16()}
	if a.Is4() {
		sa = &unix.SockaddrInet4{Addr: a.As4()}
	}
	if err := unix.Bind(fd, sa); err != nil {
		return netip.AddrPort{}, os.NewSyscallError("bind", err)
	}
	got, err := unix.Getsockname(fd)
	if err != nil {
		return netip.AddrPort{}, os.NewSyscallError("getsockname", err)
	}
	if s, ok := got.(*unix.SockaddrInet4); ok {
		return netip.AddrPortFrom(a, uint16(s.Port)), nil
	}
	return netip.AddrPortFrom(a, uint16(got.(*unix.SockaddrInet6).Port)), nil
}

// conn is a connection, whose last packet may come after Close.
type conn struct {
	net.Conn
	path *Path
	key  key
	flow *flow
}

// SetLinger is that of net.TCPConn.
func (c *conn) SetLinger(seconds int) error {
	if t, ok := c.Conn.(*net.TCPConn); ok {
		return t.SetLinger(seconds)
	}
	return nil
}

// Read reads, by UDP with a look at whether packets took the path.
func (c *conn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if c.key.proto == header.ProtoUDP {
		err = c.path.passed(c.flow, err)
	}
	return n, err
}

// Close ends the connection.
func (c *conn) Close() error {
	time.AfterFunc(lingers, func() { c.path.forget(c.key, c.flow) })
	return c.Conn.Close()
}

// forget ends the state of a connection, whose local side may be another's by now.
func (p *Path) forget(k key, f *flow) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.flows[k] == f {
		delete(p.flows, k)
	}
	if f.routed != nil {
		p.release(f.routed)
		f.routed = nil
	}
}

// prepare makes the pair, the rule, and the route to a frontend's address, where they are not there yet.
// The caller releases the route.
func (p *Path) prepare(frontend netip.Addr) (*routed, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cfg.Mark == 0 {
		return nil, errors.New("hostVeth.probeMark is 0")
	}
	if p.open != nil && p.open.changed() {
		p.shut()
	}
	if p.open == nil {
		if _, found, _ := vethpair.Find(names); found && p.cfg.Beside {
			return nil, fmt.Errorf("%s is there: `weir endpoints` has the checks of the running Weir", names[0])
		}
		d, err := openDevice()
		if err != nil {
			return nil, err
		}
		p.open, p.last, p.finished = d, d, make(chan struct{})
		go p.read(d, p.finished)
	}
	if err := p.rule(frontend); err != nil {
		return nil, err
	}
	return p.use(frontend)
}

// rule makes the rule of a family, unless somebody else uses the table. Preconditions: p.mu is held.
func (p *Path) rule(frontend netip.Addr) error {
	family := unix.AF_INET6
	if frontend.Is4() {
		family = unix.AF_INET
	}
	if _, known := p.ruled[family]; known {
		return nil
	}
	if err := p.mark.CheckUnused(family); err != nil {
		return err
	}
	made, err := p.mark.Add(family)
	if err != nil {
		return err
	}
	if len(p.ruled) == 0 && p.cfg.Log != nil {
		p.mark.WarnConflict(p.cfg.Log)
	}
	p.ruled[family] = made
	return nil
}

// renew has the pair made again if it is gone, and else routes and rules alone, since other connections
// use the pair. Preconditions: p.mu is held, p is open.
func (p *Path) renew() {
	if p.open.changed() {
		p.shut()
		return
	}
	for a := range p.routes {
		_ = p.open.routes.RouteReplace(p.route(a)) // or the next connection tells
	}
	for family := range p.ruled {
		if made, err := p.mark.Add(family); err == nil && made {
			p.ruled[family] = true
		}
	}
}

// shut closes the sockets. Preconditions: p.mu is held.
func (p *Path) shut() {
	p.open.close()
	p.open = nil
	clear(p.routes)
}

// Close removes pair, routes and rules of this Path.
func (p *Path) Close() error {
	p.mu.Lock()
	d := p.last
	if d == nil {
		p.mu.Unlock()
		return nil
	}
	if p.last = nil; p.open != nil {
		p.shut()
	}
	var errs []error
	for family, made := range p.ruled {
		if made {
			if err := netlink.RuleDel(p.mark.Of(family)); err != nil && !errors.Is(err, unix.ENOENT) {
				errs = append(errs, fmt.Errorf("remove the routing rule for mark %#x: %w", p.cfg.Mark, err))
			}
		}
	}
	clear(p.ruled)
	p.mu.Unlock()
	<-p.finished
	return errors.Join(append(errs, d.pair.Remove())...)
}

// Cleanup removes pair, routes and rules of a process that was killed. It must not be called while a Path
// is in use.
func Cleanup() error {
	err := markrule.Remove(markrule.Probes)
	pair, found, foreign := vethpair.Find(names)
	if foreign != nil || !found {
		return errors.Join(err, foreign)
	}
	return errors.Join(err, pair.Remove())
}
