package probepath

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/header"
	"github.com/weirlb/weir/lb/vethpair"
)

// offloads are off: packets are to be complete, one by one, when they leave.
var offloads = map[string]bool{"tx-checksum-ip-generic": false, "tx-generic-segmentation": false, "tx-tcp-segmentation": false, "tx-tcp6-segmentation": false}

// device is the pair with the sockets.
type device struct {
	pair  vethpair.Pair
	outer int      // index of the end by which packets enter
	in    *os.File // packet socket of the other end
	out   int      // packet socket: l2dsr
	raw4  int
	raw6  int // -1 on a machine without IPv6
	// routes is a socket in the network namespace of the pair, which timers are not in.
	routes *netlink.Handle
}

// openDevice makes the pair and the sockets.
func openDevice() (_ *device, err error) {
	pair, err := vethpair.Make(vethpair.Config{Names: names, MTU: mtu, Queues: 1})
	if err != nil {
		return nil, err
	}
	d := &device{pair: pair, outer: pair[0].Attrs().Index, out: -1, raw4: -1, raw6: -1}
	defer func() {
		if err != nil {
			d.close()
			err = errors.Join(err, pair.Remove())
		}
	}()
	for _, l := range pair {
		name := l.Attrs().Name
		// Without ARP frames have the MAC address of the sending end.
		if err := netlink.LinkSetARPOff(l); err != nil {
			return nil, fmt.Errorf("%s: switch ARP off: %w", name, err)
		}
		if err := netlink.LinkSetIP6AddrGenMode(l, addrGenNone); err != nil && !errors.Is(err, unix.EAFNOSUPPORT) && !errors.Is(err, unix.EOPNOTSUPP) {
			return nil, fmt.Errorf("%s: IPv6 address generation: %w", name, err)
		}
		if err := vethpair.SetOffloads(name, offloads); err != nil {
			return nil, err
		}
	}
	if err := pair.SetUp(mtu); err != nil {
		return nil, err
	}
	if d.routes, err = netlink.NewHandle(unix.NETLINK_ROUTE); err != nil {
		return nil, fmt.Errorf("netlink socket: %w", err)
	}
	return d, d.sockets()
}

func (d *device) sockets() error {
	in, err := packetSocket(unix.ETH_P_ALL, d.pair[1].Attrs().Index)
	if err != nil {
		return err
	}
	d.in = os.NewFile(uintptr(in), names[1])
	if d.out, err = packetSocket(0, 0); err != nil {
		return err
	}
	if d.raw4, err = unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_RAW); err != nil {
		return os.NewSyscallError("raw socket", err)
	}
	if d.raw6, err = unix.Socket(unix.AF_INET6, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_RAW); err != nil {
		if d.raw6 = -1; errors.Is(err, unix.EAFNOSUPPORT) {
			return nil
		}
		return os.NewSyscallError("raw socket of IPv6", err)
	}
	return nil
}

// packetSocket is a packet socket without link-layer headers, bound to an interface unless index is 0.
func packetSocket(proto uint16, index int) (int, error) {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return -1, os.NewSyscallError("packet socket", err)
	}
	if index != 0 {
		if err := unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: network(proto), Ifindex: index}); err != nil {
			return -1, errors.Join(os.NewSyscallError("bind a packet socket", err), unix.Close(fd))
		}
	}
	return fd, nil
}

// network is in the order of bytes of the network.
func network(n uint16) uint16 {
	return binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, n))
}

// changed reports whether another program has removed the pair, or taken it down.
func (d *device) changed() bool {
	now, err := d.pair.Now()
	return err != nil || now.Differences(mtu) != nil
}

func (d *device) close() {
	if d.in != nil {
		_ = d.in.Close()
	}
	for _, fd := range []int{d.out, d.raw4, d.raw6} {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
	if d.routes != nil {
		d.routes.Close()
	}
}

// read sends the packets that enter the pair on, until the device is closed.
func (p *Path) read(d *device, finished chan<- struct{}) {
	defer close(finished)
	b := make([]byte, header.MaxEncapLen+mtu)
	for {
		n, err := d.in.Read(b[header.MaxEncapLen:])
		switch {
		case errors.Is(err, fs.ErrClosed):
			return
		case err != nil: // as ENETDOWN, when somebody takes the pair down
			continue
		}
		p.forward(d, b[:header.MaxEncapLen+n])
	}
}

// forward sends a packet that lies behind room for an outer header. Packets of none of the connections are
// ignored.
func (p *Path) forward(d *device, b []byte) {
	k, to, ok := tuple(b[header.MaxEncapLen:])
	if !ok {
		return
	}
	p.mu.Lock()
	f := p.flows[k]
	if p.open != d { // closed: the numbers of the sockets may be another's
		f = nil
	}
	if f != nil {
		f.sent.Store(true)
		f.note(to, d.send(f, b, p.cfg.GUEZeroChecksum))
	}
	p.mu.Unlock()
}

// note keeps why a packet to an address was not sent as it had to.
func (f *flow) note(to netip.AddrPort, err error) {
	switch {
	case to != f.Frontend:
		f.fail(fmt.Errorf("%w: the kernel of the node sends packets of %s to %s, as kube-proxy or rules of a firewall do", ErrNode, f.Frontend, to))
	case err != nil:
		f.fail(fmt.Errorf("send to %s: %w", f.Endpoint, err))
	}
}

// tuple is the local side of a packet, and where it goes.
func tuple(b []byte) (k key, to netip.AddrPort, ok bool) {
	switch {
	case len(b) >= header.IPv4Len && b[0] == 0x45:
		l4 := b[header.IPv4Len:]
		if len(l4) < 4 || binary.BigEndian.Uint16(b[6:])&0x1fff != 0 {
			return k, to, false
		}
		k = key{b[9], netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[12:])), binary.BigEndian.Uint16(l4))}
		return k, netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[16:])), binary.BigEndian.Uint16(l4[2:])), true
	case len(b) >= header.IPv6Len+4 && b[0]>>4 == 6:
		l4 := b[header.IPv6Len:]
		k = key{b[6], netip.AddrPortFrom(netip.AddrFrom16([16]byte(b[8:])), binary.BigEndian.Uint16(l4))}
		return k, netip.AddrPortFrom(netip.AddrFrom16([16]byte(b[24:])), binary.BigEndian.Uint16(l4[2:])), true
	}
	return k, to, false
}

// send sends a packet that lies behind room for an outer header.
func (d *device) send(f *flow, b []byte, zeroChecksum bool) error {
	inner := b[header.MaxEncapLen:]
	if f.Mode == conntrack.ModeL2DSR {
		to := &unix.SockaddrLinklayer{Protocol: network(unix.ETH_P_IP), Ifindex: f.index, Halen: 6}
		if inner[0]>>4 == 6 {
			to.Protocol = network(unix.ETH_P_IPV6)
		}
		copy(to.Addr[:], f.mac[:])
		return unix.Sendto(d.out, inner, 0, to)
	}
	o := outer(f)
	b = b[header.MaxEncapLen-o.Len():]
	o.Put(b, len(inner))
	if !o.V6 {
		return unix.Sendto(d.raw4, b, 0, &unix.SockaddrInet4{Addr: f.Endpoint.As4()})
	}
	if o.GUE && !zeroChecksum {
		l4 := b[header.IPv6Len:]
		sum := header.Checksum(o.UDPSum(len(l4)), l4)
		if sum == 0 {
			sum = 0xffff
		}
		binary.LittleEndian.PutUint16(l4[6:], sum)
	}
	return unix.Sendto(d.raw6, b, 0, &unix.SockaddrInet6{Addr: f.Endpoint.As16()})
}

// outer is the outer header of a connection.
func outer(f *flow) *header.Encap {
	o := &header.Encap{V6: f.Endpoint.Is6(), GUE: f.Mode == conntrack.ModeGUE, Flow: f.spread}
	if !o.V6 {
		src, dst := f.outer.As4(), f.Endpoint.As4()
		o.Addr4 = uint64(binary.LittleEndian.Uint32(dst[:]))<<32 | uint64(binary.LittleEndian.Uint32(src[:]))
		return o
	}
	src, dst := f.outer.As16(), f.Endpoint.As16()
	for i, a := range [][]byte{src[:8], src[8:], dst[:8], dst[8:]} {
		o.Addr6[i] = binary.LittleEndian.Uint64(a)
	}
	return o
}
