package xsk

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Probe is the result of probing a kernel feature. Probes use the feature; they do not
// compare versions.
type Probe struct {
	Name string // of the feature
	// Kernel is the first mainline version that has the feature, for reading.
	Kernel string
	// Without is Weir's substitute if the feature is missing.
	Without string
	// Err is nil if the feature is there.
	Err error
}

// OK reports whether the feature is there.
func (p Probe) OK() bool { return p.Err == nil }

func (p Probe) String() string {
	if p.OK() {
		return p.Name + ": yes"
	}
	return fmt.Sprintf("%s: no (%v; kernel %s)", p.Name, p.Err, p.Kernel)
}

// ProbeSocket opens an AF_XDP socket with need_wakeup rings.
func ProbeSocket() Probe {
	p := Probe{Name: "AF_XDP sockets with need_wakeup", Kernel: "5.4", Without: "does not start"}
	fd, err := probeUmem(0, 0)
	if err == nil {
		_, err = mmapOffsets(fd)
		_ = unix.Close(fd)
	}
	p.Err = err
	return p
}

// ProbeTxMetadata registers a umem with room for transmit metadata.
func ProbeTxMetadata() Probe {
	p := Probe{
		Name: "AF_XDP transmit metadata", Kernel: "6.8 (with a flag for it: 6.11)",
		Without: "completes partial checksums in software",
	}
	fd, err := probeUmem(unix.XDP_UMEM_TX_METADATA_LEN, MetadataLen)
	if err == nil {
		_ = unix.Close(fd)
		return p
	}
	// 6.8 to 6.10: no flag, but the length is looked at.
	if fd, bad := probeUmem(0, MetadataLen-1); errors.Is(bad, unix.EINVAL) {
		return p
	} else if bad == nil {
		_ = unix.Close(fd)
	}
	p.Err = err
	return p
}

// ProbeMultiBuffer binds a socket with XDP_USE_SG to the loopback interface of
// the calling thread's network namespace, in copy mode.
func ProbeMultiBuffer() Probe {
	p := Probe{
		Name: "AF_XDP multi-buffer", Kernel: "6.6",
		Without: "needs an MTU of at most about 3500 bytes",
	}
	p.Err = probeBind(unix.XDP_COPY|unix.XDP_USE_SG, nil)
	return p
}

// ProbeBoundRings maps a ring of a socket that is bound, as a process does that goes on with
// the sockets of the last (Transfer).
func ProbeBoundRings() Probe {
	p := Probe{
		Name: "AF_XDP rings of bound sockets", Kernel: "6.4",
		Without: "opens its sockets anew in a restart and loses packets meanwhile",
	}
	p.Err = probeBind(unix.XDP_COPY, func(fd int) error {
		off, err := mmapOffsets(fd)
		if err != nil {
			return err
		}
		mem, _, err := mapRing(fd, unix.XDP_UMEM_PGOFF_FILL_RING, off.Fr, probeRing, 8)
		if errors.Is(err, unix.EBUSY) { // not that the queue is taken: that is an error of bind
			return errors.New("the kernel does not map them")
		}
		if err == nil {
			err = unix.Munmap(mem)
		}
		return err
	})
	return p
}

// ProbeNetdevFeatures asks the netdev netlink family for the features of the
// loopback interface.
func ProbeNetdevFeatures() Probe {
	p := Probe{
		Name: "driver features over netlink", Kernel: "6.3 (for AF_XDP: 6.8)",
		Without: "tries zero copy to find out, completes checksums in software with it, and has the packet loop forward at hook xdp",
	}
	_, p.Err = DeviceFeatures(loopback)
	return p
}

// loopback has interface index 1 in every network namespace.
const loopback = 1

// probeRing is the number of entries of the rings.
const probeRing = 64

// probeBind binds a new sending socket to the loopback interface, and has use try it.
func probeBind(flags uint16, use func(fd int) error) error {
	umem, err := NewUmem(64, 0)
	if err != nil {
		return err
	}
	defer umem.Close()
	fd, err := unix.Socket(unix.AF_XDP, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := umemReg(fd, umem.mem, umem.frameSize, 0, 0); err != nil {
		return err
	}
	for _, ring := range []int{unix.XDP_UMEM_FILL_RING, unix.XDP_UMEM_COMPLETION_RING, unix.XDP_TX_RING} {
		if err := unix.SetsockoptInt(fd, unix.SOL_XDP, ring, probeRing); err != nil {
			return err
		}
	}
	// The queue may still be held by the socket of the last probe.
	if err := bindTo(fd, &unix.SockaddrXDP{Flags: flags, Ifindex: loopback}); err != nil || use == nil {
		return err
	}
	return use(fd)
}

// probeUmem registers a new umem on a new socket, which it returns.
// Memory that is unmapped stays pinned until the socket is closed.
func probeUmem(flags, metadataLen uint32) (int, error) {
	fd, err := unix.Socket(unix.AF_XDP, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	mem, err := unix.Mmap(-1, 0, 16*FrameSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err == nil {
		err = umemReg(fd, mem, FrameSize, flags, metadataLen)
		_ = unix.Munmap(mem)
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, err
	}
	return fd, nil
}
