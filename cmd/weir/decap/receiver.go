package decap

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/lb/header"
)

const (
	batchSize = 64
	// bufferLen holds any IP packet.
	bufferLen = 1 << 16
	// receiveBuffer is how much a socket may keep while the loop is away.
	receiveBuffer = 8 << 20
)

// source is a socket that receives tunnel packets.
type source struct {
	fd    int
	what  string
	proto uint8 // of the inner packet; 0: GUE says
	v4raw bool  // the read data includes the outer IPv4 header
}

// mmsghdr is struct mmsghdr of recvmmsg(2).
type mmsghdr struct {
	hdr unix.Msghdr
	len uint32
	_   [4]byte
}

// message is the memory for a received packet.
type message struct {
	buf     [bufferLen]byte
	control [64]byte
	name    unix.RawSockaddrInet6
}

// receiver moves packets from sockets to the device.
type receiver struct {
	rules   Rules
	sources []source
	out     int // the device
	msgs    []message
	hdrs    []mmsghdr
	iovs    []unix.Iovec
	counts  [dropReasons]atomic.Uint64
}

// openSources opens a raw socket per protocol and family, and a UDP socket per
// family, as far as the host has the family.
func openSources(zeroChecksum bool) (_ []source, err error) {
	var out []source
	defer func() {
		if err != nil {
			closeSources(out)
		}
	}()
	for _, s := range []struct {
		family, typ, proto int
		source
	}{
		{unix.AF_INET, unix.SOCK_RAW, header.ProtoIPIP, source{what: "IPv4 in IPv4", proto: header.ProtoIPIP, v4raw: true}},
		{unix.AF_INET, unix.SOCK_RAW, header.ProtoIPv6, source{what: "IPv6 in IPv4", proto: header.ProtoIPv6, v4raw: true}},
		{unix.AF_INET6, unix.SOCK_RAW, header.ProtoIPIP, source{what: "IPv4 in IPv6", proto: header.ProtoIPIP}},
		{unix.AF_INET6, unix.SOCK_RAW, header.ProtoIPv6, source{what: "IPv6 in IPv6", proto: header.ProtoIPv6}},
		{unix.AF_INET, unix.SOCK_DGRAM, unix.IPPROTO_UDP, source{what: "GUE over IPv4"}},
		{unix.AF_INET6, unix.SOCK_DGRAM, unix.IPPROTO_UDP, source{what: "GUE over IPv6"}},
	} {
		fd, err := openSource(s.family, s.typ, s.proto, zeroChecksum)
		if errors.Is(err, unix.EAFNOSUPPORT) {
			continue
		}
		if err != nil {
			return out, fmt.Errorf("socket for %s: %w", s.what, err)
		}
		s.source.fd = fd
		out = append(out, s.source)
	}
	return out, nil
}

func openSource(family, typ, proto int, zeroChecksum bool) (fd int, err error) {
	fd, err = unix.Socket(family, typ|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, proto)
	if err != nil {
		return -1, err
	}
	defer func() {
		if err != nil {
			unix.Close(fd)
		}
	}()
	// A privilege beyond those that the sockets themselves need.
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, receiveBuffer) != nil {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, receiveBuffer)
	}
	if family == unix.AF_INET {
		if err := unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_RECVTOS, 1); err != nil {
			return -1, err
		}
		if typ == unix.SOCK_DGRAM {
			return fd, unix.Bind(fd, &unix.SockaddrInet4{Port: header.GUEPort})
		}
		return fd, nil
	}
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_RECVTCLASS, 1); err != nil {
		return -1, err
	}
	if typ != unix.SOCK_DGRAM {
		return fd, nil
	}
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1); err != nil {
		return -1, err
	}
	if zeroChecksum {
		if err := unix.SetsockoptInt(fd, unix.SOL_UDP, unix.UDP_NO_CHECK6_RX, 1); err != nil {
			return -1, err
		}
	}
	return fd, unix.Bind(fd, &unix.SockaddrInet6{Port: header.GUEPort})
}

func closeSources(list []source) {
	for _, s := range list {
		unix.Close(s.fd)
	}
}

func newReceiver(rules Rules, sources []source, out int) *receiver {
	r := &receiver{rules: rules, sources: sources, out: out,
		msgs: make([]message, batchSize), hdrs: make([]mmsghdr, batchSize), iovs: make([]unix.Iovec, batchSize)}
	for i := range r.msgs {
		m, h := &r.msgs[i], &r.hdrs[i].hdr
		r.iovs[i] = unix.Iovec{Base: &m.buf[0], Len: bufferLen}
		h.Name, h.Iov, h.Iovlen, h.Control = (*byte)(unsafe.Pointer(&m.name)), &r.iovs[i], 1, &m.control[0]
	}
	return r
}

// run receives until ctx ends.
func (r *receiver) run(ctx context.Context) error {
	stop, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return fmt.Errorf("eventfd: %w", err)
	}
	defer unix.Close(stop)
	release := context.AfterFunc(ctx, func() { _, _ = unix.Write(stop, []byte{1, 0, 0, 0, 0, 0, 0, 0}) })
	defer release()
	fds := []unix.PollFd{{Fd: int32(stop), Events: unix.POLLIN}}
	for _, s := range r.sources {
		fds = append(fds, unix.PollFd{Fd: int32(s.fd), Events: unix.POLLIN})
	}
	for ctx.Err() == nil {
		if _, err := unix.Poll(fds, -1); err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("poll: %w", err)
		}
		for i := range r.sources {
			if fds[i+1].Revents != 0 {
				r.receive(&r.sources[i])
			}
		}
	}
	return nil
}

// receive delivers a batch of a socket. The call has consumed a socket error, such as an
// ICMP error.
func (r *receiver) receive(s *source) {
	for i := range r.hdrs {
		r.hdrs[i].hdr.Namelen = uint32(unsafe.Sizeof(r.msgs[i].name))
		r.hdrs[i].hdr.SetControllen(len(r.msgs[i].control))
	}
	n, _, errno := unix.Syscall6(unix.SYS_RECVMMSG, uintptr(s.fd), uintptr(unsafe.Pointer(&r.hdrs[0])), batchSize, unix.MSG_DONTWAIT, 0, 0)
	if errno != 0 {
		return
	}
	for i := range int(n) {
		m, h := &r.msgs[i], &r.hdrs[i]
		d := r.handOn(s, m.buf[:h.len], outer{src: m.source(), ecn: ecnOf(m.control[:h.hdr.Controllen])})
		r.counts[d].Add(1)
	}
}

func (r *receiver) handOn(s *source, b []byte, o outer) Drop {
	proto := s.proto
	if s.v4raw {
		if len(b) < header.IPv4Len || header.IPv4(b).HeaderLen() > len(b) {
			return DropMalformed
		}
		o.ecn = b[1] & 3
		b = b[header.IPv4(b).HeaderLen():]
	}
	if proto == 0 {
		var d Drop
		if b, proto, d = gue(b); d != Delivered {
			return d
		}
	}
	inner, d := r.rules.accept(b, proto, o)
	if d != Delivered {
		return d
	}
	if _, err := unix.Write(r.out, inner); err != nil {
		return DropWrite
	}
	return Delivered
}

// source is the sender's address as the kernel gave it.
func (m *message) source() netip.Addr {
	if m.name.Family == unix.AF_INET {
		return netip.AddrFrom4((*unix.RawSockaddrInet4)(unsafe.Pointer(&m.name)).Addr)
	}
	return netip.AddrFrom16(m.name.Addr)
}

// ecnOf finds TOS or traffic class in control messages, 0 when there is none.
func ecnOf(control []byte) uint8 {
	for len(control) >= unix.SizeofCmsghdr {
		h, data, rest, err := unix.ParseOneSocketControlMessage(control)
		if err != nil {
			return 0
		}
		if len(data) > 0 && (h.Level == unix.IPPROTO_IP && h.Type == unix.IP_TOS || h.Level == unix.IPPROTO_IPV6 && h.Type == unix.IPV6_TCLASS) {
			return data[0] & 3 // an int in IPv6: little-endian machines put it first
		}
		control = rest
	}
	return 0
}
