package xsk

import (
	"fmt"
	"sync"

	"golang.org/x/sys/unix"
)

const (
	// FrameSize is the usual size of a frame in bytes, and the largest that the
	// kernel allows: a page.
	FrameSize = 4096

	// SmallFrameSize has room for a packet of MTU 1,500 with tags. The first
	// lines of frames are as far apart as frames are large, so that they share
	// the fewer sets of a cache the larger the frames are: with 4,096 bytes a
	// 16-way cache of 2 MB keeps those of 512 frames, with 2,048 of 1,024.
	SmallFrameSize = 2048

	// Headroom is the offset of the first byte of a received packet in a frame, in bytes
	// (XDP_PACKET_HEADROOM). Packets that Weir makes itself start there too. It leaves
	// room for an outer header and for the transmit metadata before it.
	Headroom = unix.XDP_PACKET_HEADROOM
)

// Desc describes a packet, or a buffer of a packet, in a Umem: Addr is the offset of the
// first byte in the umem, Len the length in bytes, Options the
// XDP_PKT_CONTD and XDP_TX_METADATA bits.
type Desc = unix.XDPDesc

const (
	// Continued in Desc.Options says that the packet goes on in the next
	// descriptor of the ring.
	Continued = unix.XDP_PKT_CONTD

	// WithMetadata in Desc.Options says that transmit metadata lies in the
	// bytes before the packet. SetChecksum sets it.
	WithMetadata = unix.XDP_TX_METADATA
)

// Umem is the packet memory of a process: frames of equal size, shared by all sockets and
// registered with the kernel once for each group of sockets.
//
// It is a memory file that is mapped shared, so that another process which is
// given the file (see FD) sees the same packets.
type Umem struct {
	mem       []byte
	fd        int
	frameSize int
	frameMask uint64
	ownership

	mu            sync.Mutex
	groups        []*group // each with a socket at least
	registrations int      // how many groups there have been
	// noZeroCopy remembers interfaces whose driver has refused zero copy, so
	// that the other queues do not register the memory again only to ask.
	noZeroCopy map[device]bool
}

// NewUmem makes memory for the given number of frames of frameSize bytes, a
// power of two from 2048 to the page size; 0 means FrameSize. Transparent huge
// pages are asked for. The limit on locked memory is raised, as registering
// the umem with the kernel pins it.
func NewUmem(frames, frameSize int) (*Umem, error) {
	if frameSize == 0 {
		frameSize = FrameSize
	}
	page := unix.Getpagesize()
	if frameSize < 2048 || frameSize > page || frameSize&(frameSize-1) != 0 {
		return nil, fmt.Errorf("frame size %d: must be a power of two from 2048 to %d", frameSize, page)
	}
	if frames <= 0 {
		return nil, fmt.Errorf("%d frames: must be positive", frames)
	}
	size := frames * frameSize
	size = (size + page - 1) &^ (page - 1)
	fd, err := newMemoryFile(size)
	if err != nil {
		return nil, fmt.Errorf("memory file of %d bytes for %d frames: %w", size, frames, err)
	}
	a, err := mapUmem(fd, frames, frameSize)
	if err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	return a, nil
}

// mapUmem maps the memory file of so many frames, which is the umem's own from then on.
func mapUmem(fd, frames, frameSize int) (*Umem, error) {
	page := unix.Getpagesize()
	if frames <= 0 || frameSize < 2048 || frameSize > page || frameSize&(frameSize-1) != 0 {
		return nil, fmt.Errorf("%d frames of %d bytes", frames, frameSize)
	}
	size := (frames*frameSize + page - 1) &^ (page - 1)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Size != int64(size) {
		return nil, fmt.Errorf("memory file of %d bytes for %d frames of %d: %w", st.Size, frames, frameSize, err)
	}
	mem, err := unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map %d bytes for %d frames: %w", size, frames, err)
	}
	// Both are advice: without huge pages the umem works just as well.
	_ = unix.Madvise(mem, unix.MADV_HUGEPAGE)
	_ = unix.Madvise(mem, unix.MADV_DONTDUMP)
	// Kernels before 5.11 charge maps and umems to this limit; later ones
	// charge umems unless CAP_IPC_LOCK is held. Open reports the effect of a limit that is
	// too low.
	_ = raiseMemlock()
	return &Umem{
		mem: mem, fd: fd,
		frameSize: frameSize, frameMask: ^uint64(frameSize - 1),
		ownership:  newOwnership(size/frameSize, frameSize),
		noZeroCopy: make(map[device]bool),
	}, nil
}

// newMemoryFile makes a file of anonymous memory, whose size is sealed: a file that shrinks
// would be a SIGBUS for whoever has it mapped.
func newMemoryFile(size int) (int, error) {
	fd, err := unix.MemfdCreate("weir-umem", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return -1, err
	}
	if err = unix.Ftruncate(fd, int64(size)); err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL)
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// Populate makes the pages of all frames, which the registration with the kernel else waits
// for. It is harmless where the kernel cannot (before Linux 5.14), and may run beside all
// other methods but Close.
func (a *Umem) Populate() { _ = unix.Madvise(a.mem, unix.MADV_POPULATE_WRITE) }

// FD returns the memory file, which belongs to the umem. See Transfer.
func (a *Umem) FD() int { return a.fd }

// Frames returns the number of frames.
func (a *Umem) Frames() int { return len(a.mem) / a.frameSize }

// FrameSize returns the size of a frame in bytes.
func (a *Umem) FrameSize() int { return a.frameSize }

// Bytes returns the whole umem.
func (a *Umem) Bytes() []byte { return a.mem }

// Addr returns the address of the first byte of frame i, which Fill takes.
func (a *Umem) Addr(i int) uint64 { return uint64(i) * uint64(a.frameSize) }

// Base returns the address of the first byte of the frame that addr lies in.
func (a *Umem) Base(addr uint64) uint64 { return addr & a.frameMask }

// Frame returns the whole frame that addr lies in.
func (a *Umem) Frame(addr uint64) []byte {
	from := addr & a.frameMask
	to := from + uint64(a.frameSize)
	return a.mem[from:to:to]
}

// Data returns the bytes of d. The slice can be extended to the end of the
// frame and no further.
func (a *Umem) Data(d Desc) []byte {
	end := d.Addr&a.frameMask + uint64(a.frameSize)
	return a.mem[d.Addr : d.Addr+uint64(d.Len) : end]
}

// Close unmaps the umem. All sockets must be closed before.
func (a *Umem) Close() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.mem == nil {
		return nil
	}
	if n := len(a.groups); n > 0 {
		return fmt.Errorf("close umem: sockets of %d umems are open", n)
	}
	if err := unix.Munmap(a.mem); err != nil {
		return fmt.Errorf("unmap umem: %w", err)
	}
	a.mem = nil
	if err := unix.Close(a.fd); err != nil {
		return fmt.Errorf("close umem: %w", err)
	}
	return nil
}

// raiseMemlock lifts the limit on locked memory, without the right to that as
// far as the hard limit.
func raiseMemlock() error {
	limit := unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY}
	if unix.Setrlimit(unix.RLIMIT_MEMLOCK, &limit) == nil {
		return nil
	}
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit); err != nil {
		return err
	}
	limit.Cur = limit.Max
	return unix.Setrlimit(unix.RLIMIT_MEMLOCK, &limit)
}
