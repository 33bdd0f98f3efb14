// Package routes announces by routes in a table of the kernel, which a routing daemon on this
// node (FRR, BIRD) redistributes. The kernel forwards by none of them: no rule leads to the table.
package routes

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/lb/announce"
)

// Config is where the routes are.
type Config struct {
	Table int
	// Protocol marks the routes as those of Weir: others in the table stay.
	Protocol int
	// RestoreEvery is how often routes that somebody has removed are made again; 0: every 5 s.
	RestoreEvery time.Duration
}

// Speaker is an announce.Speaker. It has no attributes: these are the routing daemon's.
type Speaker struct {
	cfg  Config
	k    *netlink.Handle // of the namespace of New
	link int             // index of lo

	mu  sync.Mutex
	set map[netip.Prefix]bool
	// unsure is true after an error: the table is read again.
	unsure bool

	ended    chan struct{}
	restorer sync.WaitGroup
	end      sync.Once
}

// New makes a Speaker. Routes that are in the table stay until the first Set.
func New(cfg Config) (*Speaker, error) {
	k, err := open()
	if err != nil {
		return nil, err
	}
	s := &Speaker{cfg: cfg, k: k, ended: make(chan struct{})}
	lo, err := k.LinkByName("lo")
	if err != nil {
		k.Close()
		return nil, fmt.Errorf("interface lo: %w", err)
	}
	s.link = lo.Attrs().Index
	if err := s.read(); err != nil {
		k.Close()
		return nil, err
	}
	s.restorer.Go(s.restoreRoutes)
	return s, nil
}

func open() (*netlink.Handle, error) {
	k, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open netlink: %w", err)
	}
	_ = k.SetStrictCheck(true) // else the kernel lists the routes of all tables, which takes longer
	return k, nil
}

// read makes s.set the routes that are in the table.
func (s *Speaker) read() error {
	list, err := s.cfg.list(s.k)
	if err != nil {
		return err
	}
	s.set = map[netip.Prefix]bool{}
	for i := range list {
		s.set[prefixOf(list[i].Dst)] = true
	}
	s.unsure = false
	return nil
}

// Adopted implements announce.Speaker.
func (s *Speaker) Adopted() []netip.Prefix {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []netip.Prefix
	for p := range s.set {
		out = append(out, p)
	}
	return out
}

// Set implements announce.Speaker.
func (s *Speaker) Set(want []announce.Route) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.unsure {
		if err := s.read(); err != nil {
			return err
		}
	}
	wanted := map[netip.Prefix]bool{}
	for _, r := range want {
		wanted[r.Prefix] = true
	}
	var errs []error
	for p := range s.set {
		if wanted[p] {
			continue
		}
		if err := s.k.RouteDel(s.route(p)); err != nil && !errors.Is(err, unix.ESRCH) {
			errs = append(errs, fmt.Errorf("withdraw %s from table %d: %w", p, s.cfg.Table, err))
			continue
		}
		delete(s.set, p)
	}
	for _, r := range want {
		if s.set[r.Prefix] {
			continue
		}
		// A route of another program to the same prefix is not replaced.
		if err := s.k.RouteAdd(s.route(r.Prefix)); err != nil {
			errs = append(errs, fmt.Errorf("announce %s in table %d: %w", r.Prefix, s.cfg.Table, err))
			continue
		}
		s.set[r.Prefix] = true
	}
	s.unsure = len(errs) > 0
	return errors.Join(errs...)
}

// restoreRoutes makes routes again that somebody has removed, as setting lo down does.
func (s *Speaker) restoreRoutes() {
	every := time.NewTicker(cmp.Or(s.cfg.RestoreEvery, 5*time.Second))
	defer every.Stop()
	for {
		select {
		case <-s.ended:
			return
		case <-every.C:
		}
		s.mu.Lock()
		for p := range s.set {
			if err := s.k.RouteAdd(s.route(p)); err != nil && !errors.Is(err, unix.EEXIST) {
				s.unsure = true // the next Set says so
			}
		}
		s.mu.Unlock()
	}
}

// route is the route to a prefix. It is unicast, since daemons import no other routes alike.
func (s *Speaker) route(p netip.Prefix) *netlink.Route {
	r := &netlink.Route{
		LinkIndex: s.link, Table: s.cfg.Table, Protocol: netlink.RouteProtocol(s.cfg.Protocol), Type: unix.RTN_UNICAST,
		Dst: &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())},
	}
	if p.Addr().Is4() {
		r.Scope = netlink.SCOPE_LINK
	}
	return r
}

// Peers implements announce.Speaker: sessions are the routing daemon's.
func (s *Speaker) Peers() []announce.Peer { return nil }

// Close implements announce.Speaker.
func (s *Speaker) Close() error {
	err := s.Set(nil)
	return errors.Join(err, s.Leave())
}

// Keeps implements announce.Speaker: routes without a process would stay for good.
func (s *Speaker) Keeps() bool { return false }

// Leave implements announce.Speaker: the routes stay for the next process.
func (s *Speaker) Leave() error {
	s.end.Do(func() {
		close(s.ended)
		s.restorer.Wait()
		s.k.Close()
	})
	return nil
}

// Cleanup removes the routes that a killed process has left.
func Cleanup(cfg Config) error {
	k, err := open()
	if err != nil {
		return err
	}
	defer k.Close()
	list, err := cfg.list(k)
	errs := []error{err}
	for i := range list {
		if err := k.RouteDel(&list[i]); err != nil && !errors.Is(err, unix.ESRCH) {
			errs = append(errs, fmt.Errorf("route %s of table %d: %w", list[i].Dst, cfg.Table, err))
		}
	}
	return errors.Join(errs...)
}

// list are the routes of Weir in the table.
func (c *Config) list(k *netlink.Handle) (out []netlink.Route, err error) {
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		list, err := c.listFamily(k, family)
		if err != nil {
			return nil, fmt.Errorf("routes of table %d: %w", c.Table, err)
		}
		for i := range list {
			if int(list[i].Protocol) == c.Protocol && list[i].Dst != nil {
				out = append(out, list[i])
			}
		}
	}
	return out, nil
}

// listFamily asks again if something changed meanwhile.
func (c *Config) listFamily(k *netlink.Handle, family int) (list []netlink.Route, err error) {
	for range 10 {
		list, err = k.RouteListFiltered(family, &netlink.Route{Table: c.Table}, netlink.RT_FILTER_TABLE)
		switch {
		case errors.Is(err, unix.ENOENT), errors.Is(err, unix.EAFNOSUPPORT), errors.Is(err, unix.EOPNOTSUPP): // no such table yet, no IPv6
			return nil, nil
		case !errors.Is(err, netlink.ErrDumpInterrupted):
			return list, err
		}
	}
	return nil, err
}

func prefixOf(n *net.IPNet) netip.Prefix {
	a, _ := netip.AddrFromSlice(n.IP)
	ones, _ := n.Mask.Size()
	return netip.PrefixFrom(a.Unmap(), ones)
}
