package xsk

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// The kernel's "netdev" generic netlink family has the features of an interface's driver
// for XDP and AF_XDP (Documentation/netlink/specs/netdev.yaml).

// XDP features (enum netdev_xdp_act).
const (
	featureXDP           = 1 << 0 // native XDP
	featureRedirectTo    = 1 << 2 // ndo_xdp_xmit
	featureZeroCopy      = 1 << 3
	featureMultiBufferRx = 1 << 5
	featureMultiBufferTx = 1 << 6 // of ndo_xdp_xmit
)

// AF_XDP features (enum netdev_xsk_flags).
const featureTxChecksum = 1 << 1

// Features are the features that a driver reports.
type Features struct {
	XDP         uint64 // NETDEV_A_DEV_XDP_FEATURES, kernel 6.3
	XSK         uint64 // NETDEV_A_DEV_XSK_FEATURES, kernel 6.8
	ZeroCopySeg uint32 // buffers per packet with zero copy; 0 where not said
}

// Native reports whether the driver runs XDP programs itself.
func (f Features) Native() bool { return f.XDP&featureXDP != 0 }

// ZeroCopy reports whether the driver has AF_XDP zero copy.
func (f Features) ZeroCopy() bool { return f.XDP&featureZeroCopy != 0 }

// Redirect reports whether XDP programs may redirect packets to the device. On a veth it
// changes with its peer.
func (f Features) Redirect() bool { return f.XDP&featureRedirectTo != 0 }

// RedirectMultiBuffer reports whether they may redirect packets of several buffers.
func (f Features) RedirectMultiBuffer() bool { return f.XDP&featureMultiBufferTx != 0 }

// MultiBuffer reports whether the driver gives XDP programs packets of several
// buffers.
func (f Features) MultiBuffer() bool { return f.XDP&featureMultiBufferRx != 0 }

// TxChecksum reports whether the driver completes checksums on request of
// transmit metadata with zero copy.
func (f Features) TxChecksum() bool { return f.XSK&featureTxChecksum != 0 }

// Queue is a receive queue of an interface.
type Queue struct {
	ID int
	// Bound says that an AF_XDP socket holds the queue; kernel 6.15, false
	// before.
	Bound bool
}

// ErrNoNetdevFamily: the kernel has no "netdev" family (before 6.3), or does
// not know the question.
var ErrNoNetdevFamily = errors.New("the kernel's netdev netlink family does not answer this")

const (
	genlCtrl          = unix.GENL_ID_CTRL
	netdevDevGet      = 1
	netdevQueueGet    = 10
	devIfIndex        = 1
	devXDPFeatures    = 3
	devZeroCopySegs   = 4
	devXSKFeatures    = 6
	queueID           = 1
	queueIfIndex      = 2
	queueType         = 3
	queueXSK          = 7
	queueTypeRx       = 0
	netlinkHeaderLen  = unix.SizeofNlMsghdr
	genlHeaderLen     = 4
	netlinkAttrHeader = unix.SizeofNlAttr
)

// DeviceFeatures asks for the features of an interface, which must be in the
// network namespace of the calling thread.
func DeviceFeatures(ifindex int) (Features, error) {
	c, err := dialNetdev()
	if err != nil {
		return Features{}, err
	}
	defer c.close()
	var f Features
	err = c.request(netdevDevGet, 0, attr32(nil, devIfIndex, uint32(ifindex)), func(typ uint16, v []byte) {
		switch {
		case typ == devXDPFeatures && len(v) >= 8:
			f.XDP = binary.NativeEndian.Uint64(v)
		case typ == devXSKFeatures && len(v) >= 8:
			f.XSK = binary.NativeEndian.Uint64(v)
		case typ == devZeroCopySegs && len(v) >= 4:
			f.ZeroCopySeg = binary.NativeEndian.Uint32(v)
		}
	}, nil)
	if err != nil {
		return Features{}, fmt.Errorf("features of interface %d: %w", ifindex, err)
	}
	return f, nil
}

// DeviceQueues lists the receive queues of an interface that is up (kernel
// 6.8). An interface that is down has none.
func DeviceQueues(ifindex int) ([]Queue, error) {
	c, err := dialNetdev()
	if err != nil {
		return nil, err
	}
	defer c.close()
	var queues []Queue
	var q Queue
	rx := false
	err = c.request(netdevQueueGet, unix.NLM_F_DUMP, attr32(nil, queueIfIndex, uint32(ifindex)), func(typ uint16, v []byte) {
		switch {
		case typ == queueID && len(v) >= 4:
			q.ID = int(binary.NativeEndian.Uint32(v))
		case typ == queueType && len(v) >= 4:
			rx = binary.NativeEndian.Uint32(v) == queueTypeRx
		case typ == queueXSK:
			q.Bound = true
		}
	}, func() {
		if rx {
			queues = append(queues, q)
		}
		q, rx = Queue{}, false
	})
	if err != nil {
		return nil, fmt.Errorf("queues of interface %d: %w", ifindex, err)
	}
	return queues, nil
}

// genlConn is a generic netlink socket for a family.
type genlConn struct {
	fd     int
	family uint16
	seq    uint32
}

func dialNetdev() (*genlConn, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_GENERIC)
	if err != nil {
		return nil, fmt.Errorf("open generic netlink: %w", err)
	}
	c := &genlConn{fd: fd, family: genlCtrl}
	var family uint16
	name := append([]byte("netdev"), 0)
	err = c.request(unix.CTRL_CMD_GETFAMILY, 0, attr(nil, unix.CTRL_ATTR_FAMILY_NAME, name), func(typ uint16, v []byte) {
		if typ == unix.CTRL_ATTR_FAMILY_ID && len(v) >= 2 {
			family = binary.NativeEndian.Uint16(v)
		}
	}, nil)
	if err == nil && family == 0 {
		err = ErrNoNetdevFamily
	}
	if err != nil {
		c.close()
		return nil, err
	}
	c.family = family
	return c, nil
}

func (c *genlConn) close() { _ = unix.Close(c.fd) }

// request sends a request and calls each for the attributes of the answers, and
// end after each message.
func (c *genlConn) request(command uint8, flags uint16, attrs []byte, each func(typ uint16, value []byte), end func()) error {
	c.seq++
	if flags == 0 {
		flags = unix.NLM_F_ACK
	}
	msg := make([]byte, netlinkHeaderLen+genlHeaderLen, 256)
	msg[netlinkHeaderLen] = command
	msg[netlinkHeaderLen+1] = 1 // version
	msg = append(msg, attrs...)
	binary.NativeEndian.PutUint32(msg[0:], uint32(len(msg)))
	binary.NativeEndian.PutUint16(msg[4:], c.family)
	binary.NativeEndian.PutUint16(msg[6:], unix.NLM_F_REQUEST|flags)
	binary.NativeEndian.PutUint32(msg[8:], c.seq)
	if err := unix.Sendto(c.fd, msg, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return os.NewSyscallError("sendto", err)
	}
	buf := make([]byte, 64<<10)
	for {
		n, _, err := unix.Recvfrom(c.fd, buf, 0)
		if err != nil {
			if err == unix.EINTR {
				continue
			}
			return os.NewSyscallError("recvfrom", err)
		}
		done, err := parseMessages(buf[:n], each, end)
		if done || err != nil {
			return err
		}
	}
}

// parseMessages goes through the netlink messages in b; done reports that the last message
// of the answer was among them.
func parseMessages(b []byte, each func(uint16, []byte), end func()) (done bool, err error) {
	for len(b) >= netlinkHeaderLen {
		length := int(binary.NativeEndian.Uint32(b))
		if length < netlinkHeaderLen || length > len(b) {
			return true, fmt.Errorf("netlink message of %d bytes in %d", length, len(b))
		}
		body := b[netlinkHeaderLen:length]
		switch binary.NativeEndian.Uint16(b[4:]) {
		case unix.NLMSG_ERROR, unix.NLMSG_DONE:
			return true, answerError(body)
		default:
			if len(body) >= genlHeaderLen {
				parseAttributes(body[genlHeaderLen:], each)
				if end != nil {
					end()
				}
			}
		}
		b = b[min(align4(length), len(b)):]
	}
	return false, nil
}

func answerError(body []byte) error {
	if len(body) < 4 {
		return nil
	}
	switch errno := unix.Errno(-int32(binary.NativeEndian.Uint32(body))); errno {
	case 0:
		return nil
	case unix.ENOENT, unix.EOPNOTSUPP:
		return fmt.Errorf("%w: %w", ErrNoNetdevFamily, errno)
	default:
		return errno
	}
}

func parseAttributes(b []byte, each func(uint16, []byte)) {
	for len(b) >= netlinkAttrHeader {
		length := int(binary.NativeEndian.Uint16(b))
		if length < netlinkAttrHeader || length > len(b) {
			return
		}
		const flags = unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER
		each(binary.NativeEndian.Uint16(b[2:])&^flags, b[netlinkAttrHeader:length])
		b = b[min(align4(length), len(b)):]
	}
}

func attr32(b []byte, typ uint16, v uint32) []byte {
	return attr(b, typ, binary.NativeEndian.AppendUint32(nil, v))
}

func attr(b []byte, typ uint16, v []byte) []byte {
	b = binary.NativeEndian.AppendUint16(b, uint16(netlinkAttrHeader+len(v)))
	b = binary.NativeEndian.AppendUint16(b, typ)
	b = append(b, v...)
	return append(b, make([]byte, align4(len(v))-len(v))...)
}

func align4(n int) int { return (n + 3) &^ 3 }
