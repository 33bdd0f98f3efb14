package route

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/perf/netlab/patience"
)

// needRoot skips a test of the real kernel where it cannot run; in CI that is
// a failure.
func needRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() == 0 {
		return
	}
	if os.Getenv("CI") == "true" {
		t.Fatal("needs root to make network namespaces")
	}
	t.Skip("needs root to make network namespaces")
}

// namespace is a network namespace without a name: it goes with its handle.
type namespace struct {
	t  testing.TB
	ns netns.NsHandle
	*netlink.Handle
}

func newNamespace(t testing.TB) *namespace {
	t.Helper()
	needRoot(t)
	made := make(chan netns.NsHandle)
	failed := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread goes with the goroutine
		ns, err := netns.New()
		if err != nil {
			failed <- err
			return
		}
		made <- ns
	}()
	n := &namespace{t: t}
	select {
	case n.ns = <-made:
	case err := <-failed:
		t.Fatalf("make network namespace: %v", err)
	}
	var err error
	if n.Handle, err = netlink.NewHandleAt(n.ns); err != nil {
		t.Fatalf("netlink in the namespace: %v", err)
	}
	t.Cleanup(func() {
		n.Handle.Close()
		n.ns.Close()
	})
	lo := n.link("lo")
	n.must(n.LinkSetUp(lo))
	return n
}

// do runs f on a thread in the namespace.
func (n *namespace) do(f func() error) {
	n.t.Helper()
	n.must(inNamespace(n.ns, f))
}

func (n *namespace) must(err error) {
	n.t.Helper()
	if err != nil {
		n.t.Fatal(err)
	}
}

func (n *namespace) link(name string) netlink.Link {
	n.t.Helper()
	l, err := n.LinkByName(name)
	n.must(err)
	return l
}

func (n *namespace) index(name string) int { n.t.Helper(); return n.link(name).Attrs().Index }

// sysctl writes a file under /proc/sys/net.
func (n *namespace) sysctl(path, value string) {
	n.t.Helper()
	n.do(func() error { return os.WriteFile("/proc/sys/net/"+path, []byte(value), 0o644) })
}

// probing sets how long the kernel waits, in milliseconds, between requests of a resolution, and
// between resolutions of a neighbor that it keeps fresh by itself, which Linux 5.10 does not.
func (n *namespace) probing(ifname, requests, resolutions string) {
	n.t.Helper()
	n.sysctl("ipv4/neigh/"+ifname+"/retrans_time_ms", requests)
	n.do(func() error {
		err := os.WriteFile("/proc/sys/net/ipv4/neigh/"+ifname+"/interval_probe_time_ms", []byte(resolutions), 0o644)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	})
}

// veth joins two namespaces: name here, peer there; both up, without
// duplicate address detection.
func (n *namespace) veth(name string, other *namespace, peer string) {
	n.t.Helper()
	v := &netlink.Veth{LinkAttrs: netlink.NewLinkAttrs(), PeerName: peer, PeerNamespace: netlink.NsFd(int(other.ns))}
	v.Name = name
	n.must(n.LinkAdd(v))
	for _, end := range []struct {
		n    *namespace
		name string
	}{{n, name}, {other, peer}} {
		end.n.sysctl("ipv6/conf/"+end.name+"/accept_dad", "0")
		end.n.must(end.n.LinkSetUp(end.n.link(end.name)))
	}
}

func (n *namespace) addr(name, cidr string) {
	n.t.Helper()
	a, err := netlink.ParseAddr(cidr)
	n.must(err)
	n.must(n.AddrAdd(n.link(name), a))
}

// unsettled is what the kernel still has to do after links and addresses were
// made: carriers are noticed, and addresses lose their tentative flag, later.
func (n *namespace) unsettled() string {
	links, err := n.LinkList()
	n.must(err)
	for _, l := range links {
		if l.Type() == "veth" && l.Attrs().OperState != netlink.OperUp {
			return l.Attrs().Name + " has no carrier"
		}
	}
	addrs, err := n.AddrList(nil, unix.AF_INET6)
	n.must(err)
	for _, a := range addrs {
		if a.Flags&unix.IFA_F_TENTATIVE != 0 {
			return a.String() + " is tentative"
		}
	}
	return ""
}

// via adds a route; gateway "" is on the link.
func (n *namespace) via(dst, gateway, name string) {
	n.t.Helper()
	n.must(n.RouteAdd(n.route(dst, gateway, name)))
}

func (n *namespace) route(dst, gateway, name string) *netlink.Route {
	n.t.Helper()
	_, p, err := net.ParseCIDR(dst)
	n.must(err)
	return &netlink.Route{Dst: p, Gw: net.ParseIP(gateway), LinkIndex: n.index(name)}
}

// watch starts a watcher in the namespace on the named interfaces: ports 0, 1, ...
func (n *namespace) watch(cfg Config, names ...string) *Watcher {
	n.t.Helper()
	for port, name := range names {
		cfg.Interfaces = append(cfg.Interfaces, Interface{Index: n.index(name), Port: port})
	}
	cfg.Namespace = n.ns
	w, err := New(cfg)
	n.must(err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	n.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			n.t.Errorf("Run: %v", err)
		}
		if err := w.Close(); err != nil {
			n.t.Errorf("Close: %v", err)
		}
	})
	return w
}

// eventually waits until got gives want.
func eventually[T comparable](t testing.TB, what string, want T, got func() T) {
	t.Helper()
	deadline := time.Now().Add(patience.For(10 * time.Second))
	last := got()
	for last != want {
		if time.Now().After(deadline) {
			t.Fatalf("%s: %v, want %v", what, last, want)
		}
		time.Sleep(2 * time.Millisecond)
		last = got()
	}
}

// pathTo describes where a table sends an address.
func pathTo(w *Watcher, addr string) string {
	p, ok := w.Load().Lookup(packetTo(netip.MustParseAddr(addr)), 0)
	if !ok {
		return p.Kind.String()
	}
	s := fmt.Sprintf("%s %d via %s from %s", p.Kind, p.Port, p.NextHop, p.Source)
	if p.Local {
		s += " local"
	}
	return s
}
