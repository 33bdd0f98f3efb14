package route

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// conn reads the kernel's tables. A single goroutine uses it.
type conn struct {
	handle *netlink.Handle
	// raw serves the messages of which the netlink package does not decode
	// enough: routes (flags, encapsulations) and neighbors (protocol).
	raw map[int]*nl.SocketHandle
}

func dial(ns netns.NsHandle) (*conn, error) {
	h, err := netlink.NewHandleAt(ns, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open netlink: %w", err)
	}
	s, err := nl.GetNetlinkSocketAt(ns, netns.None(), unix.NETLINK_ROUTE)
	if err != nil {
		h.Close()
		return nil, fmt.Errorf("open netlink: %w", err)
	}
	// A dump of a single table instead of all, if the kernel can (4.20).
	_ = unix.SetsockoptInt(s.GetFd(), unix.SOL_NETLINK, unix.NETLINK_GET_STRICT_CHK, 1)
	timeout := unix.Timeval{Sec: 30}
	if err := errors.Join(s.SetReceiveTimeout(&timeout), h.SetSocketTimeout(30e9)); err != nil {
		h.Close()
		s.Close()
		return nil, fmt.Errorf("netlink time-out: %w", err)
	}
	return &conn{handle: h, raw: map[int]*nl.SocketHandle{unix.NETLINK_ROUTE: {Socket: s}}}, nil
}

func (c *conn) close() {
	c.handle.Close()
	c.raw[unix.NETLINK_ROUTE].Close()
}

func (c *conn) request(kind, flags int) *nl.NetlinkRequest {
	r := nl.NewNetlinkRequest(kind, flags)
	r.Sockets = c.raw
	return r
}

// read takes all that the tables are built from. An error wraps
// netlink.ErrDumpInterrupted when something changed meanwhile: read again.
func (c *conn) read() (*kernelState, error) {
	k := &kernelState{links: make(map[int]*link)}
	links, err := c.handle.LinkList()
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	for _, l := range links {
		k.links[l.Attrs().Index] = newLink(l)
	}
	addrs, err := c.handle.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	for i := range addrs {
		if a, ok := newAddress(&addrs[i]); ok {
			k.addresses = append(k.addresses, a)
		}
	}
	rules, err := c.rules()
	if err != nil {
		return nil, err
	}
	k.rules = judgeRules(rules, k.links)
	tables := k.rules.tables()
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		for _, table := range tables {
			if k.routes, err = c.routes(k.routes, family, table); err != nil {
				return nil, fmt.Errorf("list routes: %w", err)
			}
		}
	}
	return k, nil
}

func newLink(l netlink.Link) *link {
	a := l.Attrs()
	n := &link{
		index: a.Index, master: a.MasterIndex, name: a.Name, kind: l.Type(), mtu: a.MTU,
		up: a.RawFlags&unix.IFF_UP != 0, running: running(a.RawFlags), loopback: a.RawFlags&unix.IFF_LOOPBACK != 0,
		noARP: a.RawFlags&unix.IFF_NOARP != 0,
	}
	copy(n.mac[:], a.HardwareAddr)
	return n
}

func newAddress(a *netlink.Addr) (address, bool) {
	p, ok := prefixOf(a.IPNet)
	if !ok {
		return address{}, false
	}
	n := address{index: a.LinkIndex, prefix: p, scope: a.Scope, flags: a.Flags}
	if a.Peer != nil {
		n.peer, _ = prefixOf(a.Peer)
	}
	return n, true
}

func prefixOf(n *net.IPNet) (netip.Prefix, bool) {
	if n == nil {
		return netip.Prefix{}, false
	}
	ip, ok := netip.AddrFromSlice(n.IP)
	if !ok {
		return netip.Prefix{}, false
	}
	ones, _ := n.Mask.Size()
	return netip.PrefixFrom(ip, ones), true
}

// routes appends the routes of a table.
func (c *conn) routes(into []kernelRoute, family uint8, table int) ([]kernelRoute, error) {
	req := c.request(unix.RTM_GETROUTE, unix.NLM_F_DUMP)
	header := unix.RtMsg{Family: family, Table: unix.RT_TABLE_UNSPEC}
	if table <= 0xff {
		header.Table = uint8(table)
	}
	req.AddData(&nl.RtMsg{RtMsg: header})
	if table > 0xff {
		req.AddData(nl.NewRtAttr(unix.RTA_TABLE, nl.Uint32Attr(uint32(table))))
	}
	var bad error
	err := req.ExecuteIter(unix.NETLINK_ROUTE, unix.RTM_NEWROUTE, func(m []byte) bool {
		r, ok, err := parseRoute(m)
		if err != nil {
			bad = err
			return false
		}
		// An old kernel gives all tables.
		if ok && r.table == table {
			into = append(into, r)
		}
		return true
	})
	if errors.Is(err, unix.ENOENT) {
		err = nil // no such table yet
	}
	return into, errors.Join(err, bad)
}

// attrTypeMask takes the nested and byte order flags off an attribute's type.
const attrTypeMask = 0x3fff

var errShort = errors.New("netlink message too short")

// parseRoute decodes an rtmsg. ok is false if it is not a route of a table: a cached route,
// or another family.
func parseRoute(m []byte) (r kernelRoute, ok bool, err error) {
	if len(m) < unix.SizeofRtMsg {
		return r, false, errShort
	}
	family, flags := m[0], binary.NativeEndian.Uint32(m[8:])
	if flags&unix.RTM_F_CLONED != 0 || family != unix.AF_INET && family != unix.AF_INET6 {
		return r, false, nil
	}
	r.tos, r.table, r.kind = m[3], int(m[4]), m[7]
	r.sourced = m[2] != 0
	dst := netip.IPv4Unspecified()
	if family == unix.AF_INET6 {
		dst = netip.IPv6Unspecified()
	}
	single := hop{flags: flags, weight: 1}
	err = attributes(m[unix.SizeofRtMsg:], func(kind uint16, v []byte) (err error) {
		switch kind {
		case unix.RTA_TABLE:
			r.table = int(u32(v))
		case unix.RTA_DST:
			if ip, ok := netip.AddrFromSlice(v); ok {
				dst = ip
			}
		case unix.RTA_PRIORITY:
			r.metric = u32(v)
		case unix.RTA_PREFSRC:
			r.prefsrc, _ = netip.AddrFromSlice(v)
		case unix.RTA_PREF:
			if len(v) > 0 {
				r.preference = v[0]
			}
		case unix.RTA_METRICS:
			r.mtu, err = metricMTU(v)
		case unix.RTA_MULTIPATH:
			r.hops, err = parseMultipath(v)
		default:
			single.attribute(kind, v)
		}
		return err
	})
	if err != nil {
		return r, false, err
	}
	if r.hops == nil && single.index != 0 {
		r.hops = []hop{single}
	}
	if r.dst = netip.PrefixFrom(dst, int(m[1])).Masked(); !r.dst.IsValid() {
		return r, false, fmt.Errorf("route with a bad prefix %s/%d", dst, m[1])
	}
	return r, true, nil
}

// attribute takes the attributes that locate a next hop.
func (h *hop) attribute(kind uint16, v []byte) {
	switch kind {
	case unix.RTA_OIF:
		h.index = int(u32(v))
	case unix.RTA_GATEWAY:
		h.gateway, _ = netip.AddrFromSlice(v)
	case unix.RTA_VIA: // another family's next hop: 2 bytes of family, address
		if len(v) > 2 {
			h.gateway, _ = netip.AddrFromSlice(v[2:])
		}
	case unix.RTA_ENCAP_TYPE, unix.RTA_ENCAP:
		h.encap = true
	}
}

func parseMultipath(b []byte) ([]hop, error) {
	var hops []hop
	for len(b) > 0 {
		if len(b) < unix.SizeofRtNexthop {
			return nil, errShort
		}
		n := int(binary.NativeEndian.Uint16(b))
		if n < unix.SizeofRtNexthop || n > len(b) {
			return nil, errShort
		}
		h := hop{flags: uint32(b[2]), weight: int(b[3]) + 1, index: int(u32(b[4:]))}
		err := attributes(b[unix.SizeofRtNexthop:n], func(kind uint16, v []byte) error {
			h.attribute(kind, v)
			return nil
		})
		if err != nil {
			return nil, err
		}
		hops = append(hops, h)
		b = b[min(len(b), (n+3)&^3):]
	}
	return hops, nil
}

func metricMTU(b []byte) (mtu uint32, err error) {
	err = attributes(b, func(kind uint16, v []byte) error {
		if kind == unix.RTAX_MTU {
			mtu = u32(v)
		}
		return nil
	})
	return mtu, err
}

// attributes calls f for each attribute in b. (The netlink package's parser
// runs off the end of an attribute that is not padded.)
func attributes(b []byte, f func(kind uint16, value []byte) error) error {
	for len(b) >= unix.SizeofRtAttr {
		n := int(binary.NativeEndian.Uint16(b))
		if n < unix.SizeofRtAttr || n > len(b) {
			return errShort
		}
		kind := binary.NativeEndian.Uint16(b[2:]) & attrTypeMask
		if err := f(kind, b[unix.SizeofRtAttr:n]); err != nil {
			return err
		}
		b = b[min(len(b), (n+3)&^3):]
	}
	return nil
}

// u32 reads a 32-bit attribute; 0 if it is too short.
func u32(b []byte) uint32 {
	if len(b) < 4 {
		return 0
	}
	return binary.NativeEndian.Uint32(b)
}
