package l2

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/memberlist"
	"golang.org/x/sys/unix"
)

// otherKeyEvery is how often a hello with another key is taken note of.
const otherKeyEvery = 100 * time.Millisecond

// Port is the UDP and TCP port of nodes that share a link.
const Port = 7949

// transport is the transport of memberlist over an interface. It sends with a TTL of 255 and takes
// nothing with less (RFC 5082): no router has forwarded what arrives.
type transport struct {
	ifname string
	index  uint32 // of the interface
	local  netip.Addr
	udp    *net.UDPConn
	raw    syscall.RawConn // of udp
	tcp    net.Listener
	// group receives what asks all nodes on the link for their address.
	group   *net.UDPConn
	hellos  chan hello
	key     []byte
	packets chan *memberlist.Packet
	streams chan net.Conn
	tasks   sync.WaitGroup
	closed  chan struct{}
	once    sync.Once
}

// newTransport listens on the address of an interface.
func newTransport(ifname string, local netip.Addr, key []byte) (*transport, error) {
	t := &transport{
		ifname: ifname, local: local, key: key, hellos: make(chan hello, 16),
		packets: make(chan *memberlist.Packet, 256), streams: make(chan net.Conn), closed: make(chan struct{}),
	}
	if err := t.listen(); err != nil {
		return nil, errors.Join(fmt.Errorf("port %d of %s: %w", Port, ifname, err), t.Shutdown())
	}
	t.tasks.Go(t.readPackets)
	t.tasks.Go(t.readHellos)
	t.tasks.Go(t.acceptStreams)
	return t, nil
}

func (t *transport) listen() error {
	lc := net.ListenConfig{Control: t.control}
	lc.SetMultipathTCP(false) // it has no minimum of the TTL
	listen := func(a netip.Addr) (*net.UDPConn, error) {
		c, err := lc.ListenPacket(context.Background(), "udp", t.text(a))
		if err != nil {
			return nil, err
		}
		return c.(*net.UDPConn), nil
	}
	i, err := net.InterfaceByName(t.ifname)
	if err != nil {
		return err
	}
	t.index = uint32(i.Index)
	if t.udp, err = listen(t.local); err != nil {
		return err
	}
	if t.raw, err = t.udp.SyscallConn(); err != nil {
		return err
	}
	if t.group, err = t.listenGroup(); err != nil {
		return err
	}
	t.tcp, err = lc.Listen(context.Background(), "tcp", t.text(t.local))
	return err
}

// listenGroup listens on the address of the group alone. Package net would listen on all addresses
// in its place.
func (t *transport) listenGroup() (*net.UDPConn, error) {
	family, to := unix.AF_INET, unix.Sockaddr(&unix.SockaddrInet4{Port: Port})
	if a := t.everybody(); a.Is4() {
		to.(*unix.SockaddrInet4).Addr = a.As4()
	} else {
		family, to = unix.AF_INET6, &unix.SockaddrInet6{Port: Port, Addr: a.As16(), ZoneId: t.index}
	}
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "hellos of "+t.ifname)
	defer f.Close()
	if err := errors.Join(t.bindToLink(fd, true), unix.Bind(fd, to)); err != nil {
		return nil, err
	}
	c, err := net.FilePacketConn(f)
	if err != nil {
		return nil, err
	}
	return c.(*net.UDPConn), nil
}

// everybody is the group that every host is in without joining it (RFC 1112, RFC 4291): no switch
// filters it.
func (t *transport) everybody() netip.Addr {
	if t.local.Is4() {
		return netip.AddrFrom4([4]byte{224, 0, 0, 1})
	}
	return allNodes
}

// text is an address with the port, and with the interface where the address needs it.
func (t *transport) text(a netip.Addr) string {
	if a.IsLinkLocalUnicast() && a.Is6() || a.IsMulticast() && a.Is6() {
		a = a.WithZone(t.ifname)
	}
	return net.JoinHostPort(a.String(), strconv.Itoa(Port))
}

// control binds a socket to the interface and to the link.
func (t *transport) control(network, _ string, c syscall.RawConn) error {
	var err error
	failed := c.Control(func(fd uintptr) { err = t.bindToLink(int(fd), strings.HasPrefix(network, "udp")) })
	return errors.Join(failed, err)
}

// bindToLink binds a socket to the interface, and its packets to the link.
func (t *transport) bindToLink(fd int, udp bool) error {
	err := unix.BindToDevice(fd, t.ifname)
	set := func(level, option, value int) { err = errors.Join(err, unix.SetsockoptInt(fd, level, option, value)) }
	if t.local.Is4() {
		set(unix.IPPROTO_IP, unix.IP_TTL, linkHops)
		set(unix.IPPROTO_IP, unix.IP_MINTTL, linkHops)
		if udp {
			set(unix.IPPROTO_IP, unix.IP_MULTICAST_TTL, linkHops)
			set(unix.IPPROTO_IP, unix.IP_MULTICAST_LOOP, 0)
		}
		return err
	}
	set(unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS, linkHops)
	set(unix.IPPROTO_IPV6, unix.IPV6_MINHOPCOUNT, linkHops)
	if udp {
		set(unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_HOPS, linkHops)
		set(unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_LOOP, 0)
	}
	return err
}

// hello tells the nodes on the link the address of this node.
func (t *transport) hello() {
	_, _ = t.WriteTo(greeting(t.key, t.local), t.text(t.everybody())) // without a carrier nobody is there
}

// hello is a message to all nodes on the link.
type hello struct {
	from     netip.Addr
	otherKey bool
}

// greeting is the text of the hello of an address: with a key, one that only a node with the same
// key can say of this address. Whoever repeats it names a node.
func greeting(key []byte, a netip.Addr) []byte {
	b := []byte("weir")
	if len(key) == 0 {
		return b
	}
	h := hmac.New(sha256.New, key)
	_, _ = h.Write(append([]byte("weir hello "), a.AsSlice()...))
	return h.Sum(b)
}

func (t *transport) readHellos() {
	others := time.Time{}
	t.read(t.group, func(b []byte, from netip.AddrPort) {
		h := hello{from: from.Addr().Unmap().WithZone("")}
		if h.otherKey = !hmac.Equal(b, greeting(t.key, h.from)); h.otherKey {
			now := time.Now()
			if now.Sub(others) < otherKeyEvery {
				return // they leave room for those of nodes with the key
			}
			others = now
		}
		select {
		case t.hellos <- h:
		default: // more than can be asked for
		}
	})
}

func (t *transport) readPackets() {
	t.read(t.udp, func(b []byte, from netip.AddrPort) {
		p := &memberlist.Packet{Buf: append([]byte(nil), b...), From: net.UDPAddrFromAddrPort(from), Timestamp: time.Now()}
		select {
		case t.packets <- p:
		case <-t.closed:
		}
	})
}

func (t *transport) read(c *net.UDPConn, packet func([]byte, netip.AddrPort)) {
	b := make([]byte, 1<<16)
	raw, err := c.SyscallConn()
	if err != nil {
		return // it is closed
	}
	for {
		n, from, err := receiveFrom(raw, b)
		select {
		case <-t.closed:
			return
		default:
		}
		if err == nil && n > 0 {
			packet(b[:n], from)
		} else if err != nil && !t.pause() {
			return
		}
	}
}

// pause waits a while after an error, and is false at the end.
func (t *transport) pause() bool {
	select {
	case <-t.closed:
		return false
	case <-time.After(10 * time.Millisecond):
		return true
	}
}

func (t *transport) acceptStreams() {
	for {
		c, err := t.tcp.Accept()
		if err != nil {
			if errors.Is(err, net.ErrClosed) || !t.pause() {
				return
			}
			continue
		}
		select {
		case t.streams <- c:
		case <-t.closed:
			_ = c.Close()
			return
		}
	}
}

// FinalAdvertiseAddr implements memberlist.Transport.
func (t *transport) FinalAdvertiseAddr(string, int) (net.IP, int, error) {
	return t.local.AsSlice(), Port, nil
}

// WriteTo implements memberlist.Transport.
func (t *transport) WriteTo(b []byte, addr string) (time.Time, error) {
	to, err := netip.ParseAddrPort(addr)
	if err != nil {
		return time.Time{}, err
	}
	if to.Addr().Is4() != t.local.Is4() {
		return time.Time{}, fmt.Errorf("%s is not of the family of %s", to, t.local)
	}
	return time.Now(), sendTo(t.raw, b, to, t.index)
}

// PacketCh implements memberlist.Transport.
func (t *transport) PacketCh() <-chan *memberlist.Packet { return t.packets }

// StreamCh implements memberlist.Transport.
func (t *transport) StreamCh() <-chan net.Conn { return t.streams }

// DialTimeout implements memberlist.Transport.
func (t *transport) DialTimeout(addr string, timeout time.Duration) (net.Conn, error) {
	to, err := netip.ParseAddrPort(addr)
	if err != nil {
		return nil, err
	}
	d := net.Dialer{Timeout: timeout / dials, Control: t.control, LocalAddr: &net.TCPAddr{IP: t.local.AsSlice()}}
	if t.local.IsLinkLocalUnicast() && t.local.Is6() {
		d.LocalAddr = &net.TCPAddr{IP: t.local.AsSlice(), Zone: t.ifname}
	}
	d.SetMultipathTCP(false)
	for i := 1; ; i++ {
		c, err := d.Dial("tcp", t.text(to.Addr()))
		if ne := net.Error(nil); err == nil || i == dials || !errors.As(err, &ne) || !ne.Timeout() {
			return c, err
		}
	}
}

// dials are the attempts to open a stream in its time: the kernel sends a SYN that is lost again
// after 1 s (RFC 6298), which is too late.
const dials = 3

// Shutdown implements memberlist.Transport.
func (t *transport) Shutdown() (err error) {
	t.once.Do(func() {
		close(t.closed)
		for _, c := range []*net.UDPConn{t.udp, t.group} {
			if c != nil {
				err = errors.Join(err, c.Close())
			}
		}
		if t.tcp != nil {
			err = errors.Join(err, t.tcp.Close())
		}
		t.tasks.Wait()
	})
	return err
}
