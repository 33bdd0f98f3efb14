package xsk

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// Closing a socket is asynchronous: the queue stays busy until the kernel has passed a
// grace period. Binding is retried for so long.
const (
	busyTimeout = time.Second
	busyPause   = 10 * time.Millisecond
)

// group is a registration of the umem with the kernel, and the sockets that share it.
// Everything here is inherited by every socket of the group.
type group struct {
	number      int // for people: from 0 in the order of making
	asked       int // Config.Umem
	zeroCopy    bool
	multiBuffer bool
	metadata    bool // registered with room for transmit metadata
	sockets     []*Socket
}

// device names an interface across network namespaces.
type device struct {
	netns   uint64
	ifindex int
}

// Open opens a socket of umem and binds it. With mode Auto zero copy is tried
// first, then copy; whether packets come from the driver or from the generic
// hook is decided by how the steering program is attached.
//
// It must be called on a thread that is in the interface's network namespace.
// A queue that is busy is waited for, up to a second.
func Open(umem *Umem, cfg Config) (*Socket, error) {
	if cfg.RingSize == 0 {
		cfg.RingSize = DefaultRingSize
	}
	if err := checkRingSize(cfg.RingSize); err != nil {
		return nil, err
	}
	umem.mu.Lock()
	defer umem.mu.Unlock()
	if umem.mem == nil {
		return nil, errors.New("open socket: the umem is closed")
	}
	if cfg.ShareWith != nil {
		if cfg.ShareWith.umem != umem || cfg.ShareWith.fd < 0 {
			return nil, errors.New("open socket: the socket to share with is closed or of another umem")
		}
		g := cfg.ShareWith.group
		return umem.open(cfg, attempt{g.zeroCopy, g.multiBuffer, g})
	}
	return umem.openFirst(cfg)
}

func checkRingSize(n int) error {
	if n < 64 || n > 1<<20 || n&(n-1) != 0 {
		return fmt.Errorf("ring size %d: must be a power of two from 64 to %d", n, 1<<20)
	}
	return nil
}

// attempt is a set of bind options. share is the group to join; nil makes a new group.
type attempt struct {
	zeroCopy    bool
	multiBuffer bool
	share       *group
}

// openFirst goes through the ways to bind, best first, to the first that the
// kernel grants.
func (a *Umem) openFirst(cfg Config) (*Socket, error) {
	var modes []bool
	switch cfg.Mode {
	case Auto:
		modes = []bool{true, false}
	case ZeroCopy:
		modes = []bool{true}
	case Copy:
		modes = []bool{false}
	default:
		return nil, fmt.Errorf("open socket: unknown mode %d", cfg.Mode)
	}
	buffers := []bool{false}
	if cfg.MultiBuffer {
		buffers = []bool{true, false}
	}
	var last error
	for _, multiBuffer := range buffers {
		for _, zeroCopy := range modes {
			s, err := a.open(cfg, attempt{zeroCopy, multiBuffer, a.groupFor(cfg.Umem, zeroCopy, multiBuffer)})
			if err == nil {
				return s, nil
			}
			last = err
			if !refused(err) {
				return nil, err
			}
		}
	}
	return nil, last
}

// refused reports whether err may mean that the kernel or the driver lacks a requested
// feature, so that asking for less may help. Drivers refuse with many
// errors; those that would refuse anything are excepted.
func refused(err error) bool {
	for _, final := range []error{unix.EPERM, unix.ENODEV, unix.EBUSY, unix.ENETDOWN, unix.EAFNOSUPPORT, unix.EMFILE, unix.ENFILE} {
		if errors.Is(err, final) {
			return false
		}
	}
	return true
}

var errNoZeroCopy = errors.New("the driver has no zero copy")

func (a *Umem) groupFor(umem int, zeroCopy, multiBuffer bool) *group {
	for _, g := range a.groups {
		if g.asked == umem && g.zeroCopy == zeroCopy && g.multiBuffer == multiBuffer {
			return g
		}
	}
	return nil
}

// open makes an attempt on a fresh file descriptor.
func (a *Umem) open(cfg Config, try attempt) (*Socket, error) {
	fd, err := unix.Socket(unix.AF_XDP, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open AF_XDP socket: %w%s", err, hint(err))
	}
	s := &Socket{umem: a, cfg: cfg, fd: fd, frameMask: a.frameMask}
	dev := device{netnsCookie(fd), cfg.IfIndex}
	if try.zeroCopy && cfg.Mode == Auto && a.noZeroCopy[dev] {
		_ = s.destroy()
		return nil, errNoZeroCopy
	}
	if err := s.configure(try); err != nil {
		_ = s.destroy()
		if try.zeroCopy && !try.multiBuffer && errors.Is(err, unix.EOPNOTSUPP) {
			a.noZeroCopy[dev] = true
		}
		return nil, fmt.Errorf("interface %d queue %d (%s): %w%s", cfg.IfIndex, cfg.Queue, try, err, hint(err))
	}
	if err := a.register(s); err != nil {
		_ = s.destroy()
		return nil, fmt.Errorf("interface %d queue %d: %w", cfg.IfIndex, cfg.Queue, err)
	}
	if !slices.Contains(a.groups, s.group) {
		s.group.number = a.registrations
		a.registrations++
		a.groups = append(a.groups, s.group)
	}
	s.group.sockets = append(s.group.sockets, s)
	return s, nil
}

func (t attempt) String() string {
	text := "copy"
	if t.zeroCopy {
		text = "zero copy"
	}
	if t.multiBuffer {
		text += ", multi-buffer"
	}
	return text
}

// configure registers the umem or joins a group, makes the rings and binds.
func (s *Socket) configure(try attempt) error {
	s.group = try.share
	if s.group == nil {
		metadata, err := registerUmem(s.fd, s.umem.mem, s.umem.frameSize)
		if err != nil {
			return fmt.Errorf("register %d bytes of packet memory: %w", len(s.umem.mem), err)
		}
		s.group = &group{asked: s.cfg.Umem, zeroCopy: try.zeroCopy, multiBuffer: try.multiBuffer, metadata: metadata}
	}
	if err := s.makeRings(); err != nil {
		return err
	}
	if err := s.bind(try); err != nil {
		return fmt.Errorf("bind: %w", err)
	}
	granted, err := options(s.fd)
	if err != nil {
		return fmt.Errorf("ask for the mode granted: %w", err)
	}
	s.zeroCopy = granted&unix.XDP_OPTIONS_ZEROCOPY != 0
	s.grantMetadata()
	// In copy mode packets count against the send buffer until the device has
	// sent them; the default has room for about 200.
	_ = unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, s.cfg.RingSize*s.umem.frameSize)
	return nil
}

// grantMetadata decides whether packets are sent with transmit metadata.
func (s *Socket) grantMetadata() {
	s.txMetadata = s.cfg.TxMetadata && s.group.metadata && (s.zeroCopy || !s.cfg.MetadataZeroCopyOnly)
	if s.txMetadata && s.zeroCopy {
		// With zero copy the driver must act upon the metadata, and a driver without
		// support sends the packet with a wrong checksum.
		f, err := DeviceFeatures(s.cfg.IfIndex)
		s.txMetadata = err == nil && f.TxChecksum()
	}
}

// registerUmem registers mem, with room for transmit metadata if the kernel
// has that, and reports whether it has.
func registerUmem(fd int, mem []byte, frameSize int) (metadata bool, err error) {
	err = umemReg(fd, mem, frameSize, unix.XDP_UMEM_TX_METADATA_LEN, MetadataLen)
	if !errors.Is(err, unix.EINVAL) {
		return err == nil, err
	}
	// Kernels from 6.8 to 6.10 take the length without the flag. Older ones
	// take the field for padding and ignore it: they accept a length that is
	// not a multiple of 8 as well.
	if probe, err := probeUmem(0, MetadataLen-1); err == nil {
		_ = unix.Close(probe)
	} else if errors.Is(err, unix.EINVAL) {
		if umemReg(fd, mem, frameSize, 0, MetadataLen) == nil {
			return true, nil
		}
	}
	return false, umemReg(fd, mem, frameSize, 0, 0)
}

func (s *Socket) makeRings() error {
	size := uint32(s.cfg.RingSize)
	rings := []struct {
		name   string
		option int
		size   uint32
	}{
		{"fill", unix.XDP_UMEM_FILL_RING, 2 * size},
		{"completion", unix.XDP_UMEM_COMPLETION_RING, 2 * size},
		{"receive", unix.XDP_RX_RING, size},
		{"transmit", unix.XDP_TX_RING, size},
	}
	for _, r := range rings {
		if err := unix.SetsockoptInt(s.fd, unix.SOL_XDP, r.option, int(r.size)); err != nil {
			return fmt.Errorf("make %s ring of %d: %w", r.name, r.size, err)
		}
	}
	return s.mapRings()
}

// mapRings maps the rings of the kernel.
func (s *Socket) mapRings() error {
	size := uint32(s.cfg.RingSize)
	off, err := mmapOffsets(s.fd)
	if err != nil {
		return fmt.Errorf("ask for ring offsets: %w", err)
	}
	const addrSize, descSize = 8, 16
	ring := func(pgoff int64, at unix.XDPRingOffset, size, entry uint32) (mem []byte, r indices) {
		if err != nil {
			return nil, indices{}
		}
		mem, r, err = mapRing(s.fd, pgoff, at, size, entry)
		if err == nil {
			s.maps = append(s.maps, mem)
		}
		return mem, r
	}
	fill, fillAt := ring(unix.XDP_UMEM_PGOFF_FILL_RING, off.Fr, 2*size, addrSize)
	completion, completionAt := ring(unix.XDP_UMEM_PGOFF_COMPLETION_RING, off.Cr, 2*size, addrSize)
	rx, rxAt := ring(unix.XDP_PGOFF_RX_RING, off.Rx, size, descSize)
	tx, txAt := ring(unix.XDP_PGOFF_TX_RING, off.Tx, size, descSize)
	if err != nil {
		return fmt.Errorf("map ring: %w", err)
	}
	for _, at := range []*indices{&fillAt, &completionAt, &rxAt, &txAt} {
		at.rejected = &s.rejected
	}
	s.fill = addrProducer{fillAt, addrEntries(fill, off.Fr, 2*size)}
	s.completion = addrConsumer{completionAt, addrEntries(completion, off.Cr, 2*size)}
	s.rx = descConsumer{indices: rxAt, entries: descEntries(rx, off.Rx, size)}
	s.tx = descProducer{txAt, descEntries(tx, off.Tx, size)}
	return nil
}

// bind binds the socket.
func (s *Socket) bind(try attempt) error {
	addr := &unix.SockaddrXDP{Ifindex: uint32(s.cfg.IfIndex), QueueID: uint32(s.cfg.Queue)}
	if try.share != nil {
		// No other flag is allowed here: they are those of the group.
		addr.Flags = unix.XDP_SHARED_UMEM
		return s.bindShared(addr, try.share)
	} else {
		addr.Flags = unix.XDP_USE_NEED_WAKEUP | unix.XDP_COPY
		if try.zeroCopy {
			addr.Flags = unix.XDP_USE_NEED_WAKEUP | unix.XDP_ZEROCOPY
		}
		if try.multiBuffer {
			addr.Flags |= unix.XDP_USE_SG
		}
	}
	return bindTo(s.fd, addr)
}

// bindShared joins the umem of a group, through any bound socket: the
// kernel unbinds those of a device that is deleted.
func (s *Socket) bindShared(addr *unix.SockaddrXDP, g *group) error {
	err := error(unix.EBADF)
	for i := 0; i < len(g.sockets) && errors.Is(err, unix.EBADF); i++ {
		addr.SharedUmemFD = uint32(g.sockets[i].fd)
		err = bindTo(s.fd, addr)
	}
	return err
}

// bindTo binds a socket, and waits while the queue is still held by one that is being closed.
func bindTo(fd int, addr *unix.SockaddrXDP) error {
	deadline := time.Now().Add(busyTimeout)
	for {
		err := unix.Bind(fd, addr)
		if !errors.Is(err, unix.EBUSY) || time.Now().After(deadline) {
			return err
		}
		time.Sleep(busyPause)
	}
}

// detach takes s out of its group; the umem goes with the last socket. Another interface
// may get the index later: the stored features go as well.
func (a *Umem) detach(s *Socket) {
	a.mu.Lock()
	defer a.mu.Unlock()
	g := s.group
	maps.DeleteFunc(a.noZeroCopy, func(d device, _ bool) bool { return d.ifindex == s.cfg.IfIndex })
	g.sockets = slices.DeleteFunc(g.sockets, func(o *Socket) bool { return o == s })
	if len(g.sockets) == 0 {
		a.groups = slices.DeleteFunc(a.groups, func(o *group) bool { return o == g })
	}
}

// hint adds the remedy to an error.
func hint(err error) string {
	switch {
	case errors.Is(err, unix.EPERM):
		return " (needs CAP_NET_RAW, and CAP_IPC_LOCK or a higher RLIMIT_MEMLOCK)"
	case errors.Is(err, unix.ENOBUFS):
		return " (locked memory: grant CAP_IPC_LOCK, or raise RLIMIT_MEMLOCK: in systemd LimitMEMLOCK=infinity)"
	case errors.Is(err, unix.EBUSY):
		return " (another AF_XDP socket holds this queue)"
	case errors.Is(err, unix.EAFNOSUPPORT):
		return " (the kernel is built without CONFIG_XDP_SOCKETS)"
	case errors.Is(err, unix.EINVAL):
		return " (has the interface a receive and a transmit queue of this number?)"
	case errors.Is(err, unix.ENODEV):
		return " (no such interface in this network namespace)"
	}
	return ""
}
