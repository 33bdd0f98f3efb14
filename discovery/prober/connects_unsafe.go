package prober

import (
	"encoding/binary"
	"net/netip"
	"unsafe"

	"golang.org/x/sys/unix"
)

// System calls of which the runtime is not told, as they do not wait: at each other one an idle process
// wakes the runtime's monitor thread, which costs it more than the call.

// Families of addresses.
const (
	ipv4 = iota
	ipv6
)

// rawSocket is a socket of TCP for a family, which does not wait.
func rawSocket(family int) (fd int, err error) {
	domain := [...]uintptr{unix.AF_INET, unix.AF_INET6}[family]
	r, _, errno := unix.RawSyscall(unix.SYS_SOCKET, domain, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	return int(r), orNil(errno)
}

func rawConnect(fd int, to netip.AddrPort) error {
	var sa unix.RawSockaddrInet6 // which has room for that of IPv4
	size, port := uintptr(unix.SizeofSockaddrInet6), [2]byte{}
	binary.BigEndian.PutUint16(port[:], to.Port())
	if a := to.Addr().Unmap(); a.Is4() {
		size = unix.SizeofSockaddrInet4
		*(*unix.RawSockaddrInet4)(unsafe.Pointer(&sa)) = unix.RawSockaddrInet4{Family: unix.AF_INET, Port: binary.NativeEndian.Uint16(port[:]), Addr: a.As4()}
	} else {
		sa = unix.RawSockaddrInet6{Family: unix.AF_INET6, Port: binary.NativeEndian.Uint16(port[:]), Addr: a.As16()}
	}
	_, _, errno := unix.RawSyscall(unix.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(&sa)), size)
	return orNil(errno)
}

// rawDisconnect ends the connection of a socket, by a RST if there was a handshake: see connect(2) on
// AF_UNSPEC.
func rawDisconnect(fd int) error {
	sa := unix.RawSockaddr{Family: unix.AF_UNSPEC}
	_, _, errno := unix.RawSyscall(unix.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(&sa)), unsafe.Sizeof(sa))
	return orNil(errno)
}

// rawPoll sets the events of sockets. Where a signal ends it, there are none.
func rawPoll(sockets []unix.PollFd) {
	var now unix.Timespec
	_, _, errno := unix.RawSyscall6(unix.SYS_PPOLL, uintptr(unsafe.Pointer(unsafe.SliceData(sockets))), uintptr(len(sockets)), uintptr(unsafe.Pointer(&now)), 0, 0, 0)
	if errno != 0 {
		for i := range sockets {
			sockets[i].Revents = 0
		}
	}
}

// rawError is SO_ERROR.
func rawError(fd int) error {
	var errno int32
	size := uint32(unsafe.Sizeof(errno))
	_, _, e := unix.RawSyscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_SOCKET, unix.SO_ERROR, uintptr(unsafe.Pointer(&errno)), uintptr(unsafe.Pointer(&size)), 0)
	if e != 0 {
		return e
	}
	return orNil(unix.Errno(errno))
}

func rawInfo(fd int, i *unix.TCPInfo) error {
	size := uint32(unsafe.Sizeof(*i))
	_, _, errno := unix.RawSyscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.IPPROTO_TCP, unix.TCP_INFO, uintptr(unsafe.Pointer(i)), uintptr(unsafe.Pointer(&size)), 0)
	return orNil(errno)
}

func rawClose(fd int) error {
	_, _, errno := unix.RawSyscall(unix.SYS_CLOSE, uintptr(fd), 0, 0)
	return orNil(errno)
}

func orNil(e unix.Errno) error {
	if e == 0 {
		return nil
	}
	return e
}
