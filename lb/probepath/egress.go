package probepath

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/conntrack"
)

// egress is how packets get to an endpoint.
type egress struct {
	inner netip.Addr // source of the connection
	outer netip.Addr // source of the outer header: ipip, gue
	index int        // of the interface, and MAC address there: l2dsr
	mac   [6]byte
}

// findEgress asks the kernel, which the workers follow, too.
func findEgress(ctx context.Context, t Target) (w egress, err error) {
	to, err := routeTo(t.Endpoint)
	if err != nil {
		return w, err
	}
	back, err := routeTo(t.Frontend.Addr())
	if err != nil {
		return w, fmt.Errorf("%w: %w", ErrNode, err)
	}
	w.outer, w.index = source(to), to.LinkIndex
	if w.inner = w.outer; t.Endpoint.Is4() != t.Frontend.Addr().Is4() {
		w.inner = source(back)
	}
	if t.Frontend.Addr().Is4() && back.LinkIndex != to.LinkIndex {
		if err := loose(to.LinkIndex); err != nil {
			return w, fmt.Errorf("%w: answers of %s: %w", ErrNode, t.Frontend.Addr(), err)
		}
	}
	switch {
	case to.Type == unix.RTN_LOCAL:
		return w, fmt.Errorf("%w: %s is an address of the node itself", ErrNode, t.Endpoint)
	case !w.inner.IsValid() || !w.outer.IsValid():
		return w, fmt.Errorf("%w: the node has no address towards %s", ErrNode, t.Frontend.Addr())
	case t.Mode != conntrack.ModeL2DSR:
		return w, nil
	case to.Gw != nil:
		return w, fmt.Errorf("l2dsr reaches endpoints on networks of the node alone: the next hop to %s is %s", t.Endpoint, to.Gw)
	}
	w.mac, err = resolve(ctx, w.index, t.Endpoint)
	return w, err
}

// loose is an error if the kernel drops packets that arrive by an interface and whose source has a route by
// another.
func loose(index int) error {
	l, err := netlink.LinkByIndex(index)
	if err != nil {
		return err
	}
	name, strictest := l.Attrs().Name, byte('0')
	for _, of := range []string{name, "all"} {
		b, err := os.ReadFile("/proc/sys/net/ipv4/conf/" + of + "/rp_filter")
		if err != nil {
			return err
		}
		strictest = max(strictest, b[0]) // the kernel takes the larger
	}
	if strictest == '1' {
		return fmt.Errorf("they arrive by %s, where net.ipv4.conf.%s.rp_filter is strict: set it to 2", name, name)
	}
	return nil
}

func routeTo(a netip.Addr) (*netlink.Route, error) {
	list, err := netlink.RouteGet(a.AsSlice())
	if err != nil {
		return nil, fmt.Errorf("route to %s: %w", a, err)
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("route to %s: %w", a, unix.ENETUNREACH)
	}
	return &list[0], nil
}

func source(r *netlink.Route) netip.Addr {
	a, _ := netip.AddrFromSlice(r.Src)
	return a.Unmap()
}

// resolveEvery is how often a neighbor is looked at that is not resolved.
const resolveEvery = 10 * time.Millisecond

// resolve is the MAC address of a neighbor. The kernel resolves, or confirms it, as if it had a packet for
// it.
func resolve(ctx context.Context, index int, a netip.Addr) (mac [6]byte, err error) {
	const usable = unix.NUD_REACHABLE | unix.NUD_STALE | unix.NUD_DELAY | unix.NUD_PROBE | unix.NUD_PERMANENT | unix.NUD_NOARP
	const settled = unix.NUD_REACHABLE | unix.NUD_PERMANENT | unix.NUD_NOARP
	for asked := false; ; {
		n, err := neighbor(index, a)
		if err != nil {
			return mac, err
		}
		if (n == nil || n.State&settled == 0) && !asked {
			asked = true
			if err := netlink.NeighAdd(&netlink.Neigh{LinkIndex: index, IP: net.IP(a.AsSlice()), Flags: unix.NTF_USE}); err != nil && !errors.Is(err, unix.EEXIST) {
				return mac, fmt.Errorf("resolve %s: %w", a, err)
			}
		}
		switch {
		case n == nil:
		case n.State&usable != 0 && len(n.HardwareAddr) == len(mac):
			return [6]byte(n.HardwareAddr), nil
		case n.State&unix.NUD_FAILED != 0 && asked:
			return mac, fmt.Errorf("resolve %s: %w", a, unix.EHOSTUNREACH)
		}
		select {
		case <-ctx.Done():
			return mac, fmt.Errorf("resolve %s: %w", a, unix.EHOSTUNREACH)
		case <-time.After(resolveEvery):
		}
	}
}

// neighbor is the kernel's entry of a neighbor, nil for none.
func neighbor(index int, a netip.Addr) (*netlink.Neigh, error) {
	family := uint8(unix.AF_INET6)
	if a.Is4() {
		family = unix.AF_INET
	}
	req := nl.NewNetlinkRequest(unix.RTM_GETNEIGH, 0)
	req.AddData(&netlink.Ndmsg{Family: family, Index: uint32(index)})
	req.AddData(nl.NewRtAttr(unix.NDA_DST, a.AsSlice()))
	list, err := req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWNEIGH)
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	if err != nil || len(list) == 0 {
		return nil, fmt.Errorf("neighbor %s: %w", a, err)
	}
	return netlink.NeighDeserialize(list[0])
}
