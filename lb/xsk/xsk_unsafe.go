package xsk

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// All use of unsafe in this package: system calls that x/sys does not wrap,
// and the views of ring memory that the kernel maps.

const ringNeedWakeup = unix.XDP_RING_NEED_WAKEUP

// umemReg registers mem as the umem of the socket.
func umemReg(fd int, mem []byte, frameSize int, flags, metadataLen uint32) error {
	reg := unix.XDPUmemReg{
		Addr:            uint64(uintptr(unsafe.Pointer(unsafe.SliceData(mem)))),
		Len:             uint64(len(mem)),
		Size:            uint32(frameSize),
		Flags:           flags,
		Tx_metadata_len: metadataLen,
	}
	return setsockopt(fd, unix.SOL_XDP, unix.XDP_UMEM_REG, unsafe.Pointer(&reg), unsafe.Sizeof(reg))
}

func setsockopt(fd, level, option int, value unsafe.Pointer, size uintptr) error {
	_, _, errno := unix.Syscall6(unix.SYS_SETSOCKOPT, uintptr(fd), uintptr(level), uintptr(option),
		uintptr(value), size, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// getsockopt fills value and returns how many bytes the kernel wrote.
func getsockopt(fd, level, option int, value unsafe.Pointer, size uintptr) (int, error) {
	length := uint32(size)
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), uintptr(level), uintptr(option),
		uintptr(value), uintptr(unsafe.Pointer(&length)), 0)
	if errno != 0 {
		return 0, errno
	}
	return int(length), nil
}

func mmapOffsets(fd int) (unix.XDPMmapOffsets, error) {
	var off unix.XDPMmapOffsets
	n, err := getsockopt(fd, unix.SOL_XDP, unix.XDP_MMAP_OFFSETS, unsafe.Pointer(&off), unsafe.Sizeof(off))
	if err == nil && n != int(unsafe.Sizeof(off)) {
		// Kernels before 5.4 have no ring flags, and so no need_wakeup.
		err = fmt.Errorf("ring offsets of %d bytes: the kernel is older than 5.4", n)
	}
	return off, err
}

// options returns XDP_OPTIONS: the features granted to the socket.
func options(fd int) (uint32, error) {
	var flags uint32
	_, err := getsockopt(fd, unix.SOL_XDP, unix.XDP_OPTIONS, unsafe.Pointer(&flags), unsafe.Sizeof(flags))
	return flags, err
}

func statistics(fd int) (unix.XDPStatistics, error) {
	var s unix.XDPStatistics
	_, err := getsockopt(fd, unix.SOL_XDP, unix.XDP_STATISTICS, unsafe.Pointer(&s), unsafe.Sizeof(s))
	return s, err
}

func netnsCookie(fd int) uint64 {
	var cookie uint64
	// 0 where the kernel has none (before 5.14).
	_, _ = getsockopt(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE, unsafe.Pointer(&cookie), unsafe.Sizeof(cookie))
	return cookie
}

// mapRing maps a ring of size entries, each of entrySize bytes.
func mapRing(fd int, pgoff int64, off unix.XDPRingOffset, size, entrySize uint32) ([]byte, indices, error) {
	length := off.Desc + uint64(size)*uint64(entrySize)
	mem, err := unix.Mmap(fd, pgoff, int(length), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE)
	if err != nil {
		return nil, indices{}, err
	}
	at := func(offset uint64) *uint32 { return (*uint32)(unsafe.Pointer(&mem[offset])) }
	return mem, indices{
		producer: at(off.Producer), consumer: at(off.Consumer), flags: at(off.Flags),
		size: size, mask: size - 1,
	}, nil
}

func addrEntries(mem []byte, off unix.XDPRingOffset, size uint32) []uint64 {
	return unsafe.Slice((*uint64)(unsafe.Pointer(&mem[off.Desc])), size)
}

func descEntries(mem []byte, off unix.XDPRingOffset, size uint32) []Desc {
	return unsafe.Slice((*Desc)(unsafe.Pointer(&mem[off.Desc])), size)
}

// sendWakeup is sendto(fd, NULL, 0, MSG_DONTWAIT, NULL, 0). A raw system call:
// it never blocks, and the scheduler must not hand the P to another thread.
func sendWakeup(fd int) unix.Errno {
	_, _, errno := unix.RawSyscall6(unix.SYS_SENDTO, uintptr(fd), 0, 0, unix.MSG_DONTWAIT, 0, 0)
	return errno
}

// receiveWakeup is recvfrom(fd, NULL, 0, MSG_DONTWAIT, NULL, NULL).
func receiveWakeup(fd int) unix.Errno {
	_, _, errno := unix.RawSyscall6(unix.SYS_RECVFROM, uintptr(fd), 0, 0, unix.MSG_DONTWAIT, 0, 0)
	return errno
}

// HeadLen is the length of a [Head] in bytes: the headers of untagged IPv4 without options,
// or of IPv6, with TCP or UDP.
const HeadLen = 80

// Head is the beginning of a packet.
type Head [HeadLen]byte

// Heads gives access to packets of a Umem without a check.
type Heads struct{ base unsafe.Pointer }

// Heads returns access to the packets. It is good until Close.
func (a *Umem) Heads() Heads { return Heads{unsafe.Pointer(unsafe.SliceData(a.mem))} }

// At returns the beginning of the packet at addr. Preconditions: addr is that of a
// descriptor from Receive, and HeadLen bytes of the frame follow it.
func (h Heads) At(addr uint64) *Head { return (*Head)(unsafe.Add(h.base, addr)) }
