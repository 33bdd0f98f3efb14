package l2

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Datagrams are sent and received by system calls of which the runtime is not told, as they do not
// wait: at each other one an idle process wakes the runtime's monitor thread, which costs it more than
// the datagram.

// sendTo sends a datagram by a socket of the family of to. zone is the index of the interface.
func sendTo(c syscall.RawConn, b []byte, to netip.AddrPort, zone uint32) error {
	var sa unix.RawSockaddrInet6 // which has room for that of IPv4
	size, port := uintptr(unix.SizeofSockaddrInet6), [2]byte{}
	binary.BigEndian.PutUint16(port[:], to.Port())
	if a := to.Addr(); a.Is4() {
		size = unix.SizeofSockaddrInet4
		*(*unix.RawSockaddrInet4)(unsafe.Pointer(&sa)) = unix.RawSockaddrInet4{Family: unix.AF_INET, Port: binary.NativeEndian.Uint16(port[:]), Addr: a.As4()}
	} else {
		sa = unix.RawSockaddrInet6{Family: unix.AF_INET6, Port: binary.NativeEndian.Uint16(port[:]), Addr: a.As16(), Scope_id: zone}
	}
	var errno unix.Errno
	err := c.Write(func(fd uintptr) bool {
		_, _, errno = unix.RawSyscall6(unix.SYS_SENDTO, fd, uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)), unix.MSG_DONTWAIT, uintptr(unsafe.Pointer(&sa)), size)
		return errno != unix.EAGAIN
	})
	return errors.Join(err, orNil(errno))
}

// receiveFrom waits for a datagram. The sender has no zone.
func receiveFrom(c syscall.RawConn, b []byte) (n int, from netip.AddrPort, err error) {
	var sa unix.RawSockaddrInet6
	var errno unix.Errno
	err = c.Read(func(fd uintptr) bool {
		size := uint32(unix.SizeofSockaddrInet6)
		var r uintptr
		r, _, errno = unix.RawSyscall6(unix.SYS_RECVFROM, fd, uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)), unix.MSG_DONTWAIT,
			uintptr(unsafe.Pointer(&sa)), uintptr(unsafe.Pointer(&size)))
		n = int(r)
		return errno != unix.EAGAIN
	})
	if err = errors.Join(err, orNil(errno)); err != nil {
		return 0, from, err
	}
	var port [2]byte
	binary.NativeEndian.PutUint16(port[:], sa.Port) // at the same place in both families
	a := netip.AddrFrom16(sa.Addr)
	if sa.Family == unix.AF_INET {
		a = netip.AddrFrom4((*unix.RawSockaddrInet4)(unsafe.Pointer(&sa)).Addr)
	}
	return n, netip.AddrPortFrom(a, binary.BigEndian.Uint16(port[:])), nil
}

func orNil(e unix.Errno) error {
	if e == 0 {
		return nil
	}
	return e
}
