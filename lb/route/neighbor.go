package route

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Protocol is the number (RTPROT_*, NDA_PROTOCOL) by which Weir's own routes
// and neighbors are known, also to the next start after a crash. The kernel
// leaves numbers above 4 to user space; iproute2's list does not have this number.
const Protocol = 87

// neighborKey identifies a neighbor of the host.
type neighborKey struct {
	index int
	addr  netip.Addr
}

// neighbor is the kernel's entry of a neighbor.
type neighbor struct {
	state    uint16 // NUD_*
	flags    uint8  // NTF_*
	managed  bool   // NTF_EXT_MANAGED
	protocol uint8
	hasMAC   bool
	mac      [6]byte
}

// usable says that frames may be sent to the MAC.
func (n *neighbor) usable() bool {
	const valid = unix.NUD_REACHABLE | unix.NUD_STALE | unix.NUD_DELAY | unix.NUD_PROBE | unix.NUD_PERMANENT | unix.NUD_NOARP
	return n.hasMAC && n.state&valid != 0
}

// fixed says that the kernel does not resolve it: an administrator's entry.
func (n *neighbor) fixed() bool { return n.state&(unix.NUD_PERMANENT|unix.NUD_NOARP) != 0 }

// managedByWeir says that Weir had the kernel keep it fresh.
func (n *neighbor) managedByWeir() bool { return n.managed && n.protocol == Protocol }

// parseNeighbor decodes an ndmsg; ok is false if it is not an IP neighbor (a bridge's
// forwarding entry, a proxy entry).
func parseNeighbor(m []byte) (k neighborKey, n neighbor, ok bool) {
	if len(m) < unix.SizeofNdMsg || m[0] != unix.AF_INET && m[0] != unix.AF_INET6 {
		return k, n, false
	}
	k.index = int(int32(u32(m[4:])))
	n.state = binary.NativeEndian.Uint16(m[8:])
	n.flags = m[10]
	if n.flags&unix.NTF_PROXY != 0 {
		return k, n, false
	}
	err := attributes(m[unix.SizeofNdMsg:], func(kind uint16, v []byte) error {
		switch kind {
		case unix.NDA_DST:
			k.addr, _ = netip.AddrFromSlice(v)
		case unix.NDA_LLADDR:
			if len(v) == 6 {
				n.hasMAC = true
				copy(n.mac[:], v)
			}
		case netlink.NDA_FLAGS_EXT:
			n.managed = u32(v)&netlink.NTF_EXT_MANAGED != 0
		case netlink.NDA_PROTOCOL:
			if len(v) > 0 {
				n.protocol = v[0]
			}
		}
		return nil
	})
	if err != nil {
		return k, n, false
	}
	return k, n, k.addr.IsValid()
}

// neighbors lists those on the given interfaces.
func (c *conn) neighbors(on func(index int) bool) (map[neighborKey]neighbor, error) {
	all := make(map[neighborKey]neighbor)
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		req := c.request(unix.RTM_GETNEIGH, unix.NLM_F_DUMP)
		req.AddData(&netlink.Ndmsg{Family: family})
		err := req.ExecuteIter(unix.NETLINK_ROUTE, unix.RTM_NEWNEIGH, func(m []byte) bool {
			if k, n, ok := parseNeighbor(m); ok && on(k.index) {
				all[k] = n
			}
			return true
		})
		if err != nil {
			return nil, fmt.Errorf("list neighbors: %w", err)
		}
	}
	return all, nil
}

// neighbor reads a neighbor; ok is false if the kernel has none, or has no request for a
// single neighbor (before 5.0).
func (c *conn) neighbor(k neighborKey) (n neighbor, ok bool) {
	req := c.request(unix.RTM_GETNEIGH, 0)
	req.AddData(&netlink.Ndmsg{Family: AddressFamily(k.addr), Index: uint32(k.index)})
	req.AddData(nl.NewRtAttr(unix.NDA_DST, k.addr.AsSlice()))
	msgs, err := req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWNEIGH)
	if err != nil || len(msgs) == 0 {
		return n, false
	}
	_, n, ok = parseNeighbor(msgs[0])
	return n, ok
}

// probe makes the kernel resolve a neighbor, or confirm a stale neighbor, as if it had a
// packet for it. With managed the kernel keeps it fresh from then on, and never to
// collect it; a kernel before 5.16 takes the request and ignores that part.
func (c *conn) probe(k neighborKey, managed bool) error {
	req := c.request(unix.RTM_NEWNEIGH, unix.NLM_F_CREATE|unix.NLM_F_REPLACE|unix.NLM_F_ACK)
	msg := &netlink.Ndmsg{Family: AddressFamily(k.addr), Index: uint32(k.index), Flags: unix.NTF_USE}
	if managed {
		msg.Flags |= unix.NTF_EXT_LEARNED
	}
	req.AddData(msg)
	req.AddData(nl.NewRtAttr(unix.NDA_DST, k.addr.AsSlice()))
	req.AddData(nl.NewRtAttr(netlink.NDA_PROTOCOL, []byte{Protocol}))
	if managed {
		req.AddData(nl.NewRtAttr(netlink.NDA_FLAGS_EXT, nl.Uint32Attr(netlink.NTF_EXT_MANAGED)))
	}
	_, err := req.Execute(unix.NETLINK_ROUTE, 0)
	return err
}

// restart has the kernel forget a resolution that is under way, without an error to the sockets
// that wait for it: the next probe begins another. Until then the neighbor is not managed.
func (c *conn) restart(k neighborKey) error {
	req := c.request(unix.RTM_NEWNEIGH, unix.NLM_F_REPLACE|unix.NLM_F_ACK)
	req.AddData(&netlink.Ndmsg{Family: AddressFamily(k.addr), Index: uint32(k.index), State: unix.NUD_NONE})
	req.AddData(nl.NewRtAttr(unix.NDA_DST, k.addr.AsSlice()))
	_, err := req.Execute(unix.NETLINK_ROUTE, 0)
	return ignoreAbsent(err)
}

// release ends the management of a neighbor: the resolved address stays, and ages.
func (c *conn) release(k neighborKey, n neighbor) error {
	req := c.request(unix.RTM_NEWNEIGH, unix.NLM_F_REPLACE|unix.NLM_F_ACK)
	req.AddData(&netlink.Ndmsg{Family: AddressFamily(k.addr), Index: uint32(k.index), State: unix.NUD_STALE})
	req.AddData(nl.NewRtAttr(unix.NDA_DST, k.addr.AsSlice()))
	req.AddData(nl.NewRtAttr(unix.NDA_LLADDR, n.mac[:]))
	_, err := req.Execute(unix.NETLINK_ROUTE, 0)
	return ignoreAbsent(err)
}

// remove deletes a neighbor.
func (c *conn) remove(k neighborKey) error {
	req := c.request(unix.RTM_DELNEIGH, unix.NLM_F_ACK)
	req.AddData(&netlink.Ndmsg{Family: AddressFamily(k.addr), Index: uint32(k.index)})
	req.AddData(nl.NewRtAttr(unix.NDA_DST, k.addr.AsSlice()))
	_, err := req.Execute(unix.NETLINK_ROUTE, 0)
	return ignoreAbsent(err)
}

// CleanupStale ends the refreshing of neighbors that a process which was killed has asked
// of the kernel, in the network namespace of the calling thread. It must not be called
// while a Watcher is in use.
func CleanupStale() error {
	c, err := dial(netns.None())
	if err != nil {
		return err
	}
	defer c.close()
	all, err := c.neighbors(func(int) bool { return true })
	if err != nil {
		return err
	}
	var errs []error
	for k, n := range all {
		if !n.managedByWeir() {
			continue
		}
		if n.usable() {
			err = c.release(k, n)
		} else {
			err = c.remove(k)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("release neighbor %s: %w", k.addr, err))
		}
	}
	return errors.Join(errs...)
}

// ignoreAbsent forgives the absence of an object to be removed.
func ignoreAbsent(err error) error {
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENETDOWN) {
		return nil
	}
	return err
}

// AddressFamily is the address family of a, as netlink and sockets number them.
func AddressFamily(a netip.Addr) uint8 {
	if a.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}
