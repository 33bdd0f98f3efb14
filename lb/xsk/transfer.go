package xsk

import (
	"errors"
	"fmt"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"
)

// TransferVersion is the number of the layout of a Transfer. Increase it when a process could
// misread what an earlier release passes to it.
const TransferVersion = 1

// Transfer is packet memory with its sockets, on the way from a process that has stopped using
// them to the next. The sockets stay bound meanwhile, and packets wait in the receive rings.
// The fields travel in a message, and the descriptors beside it (SCM_RIGHTS).
type Transfer struct {
	Version           int
	Frames, FrameSize int
	Sockets           []TransferSocket

	// fds are the memory, the owners of its frames, and the sockets in order.
	fds []int
}

// TransferSocket is a socket of a Transfer.
type TransferSocket struct {
	IfIndex, Queue, RingSize int
	Owner                    uint16
	Umem, Group              int // Config.Umem, and the registration of the memory
	MultiBuffer, Metadata    bool
}

// firstSocket is the number of descriptors before those of the sockets.
const firstSocket = 2

// Transfer prepares the memory with some of its sockets for another process. Preconditions:
// nobody uses the sockets any more, but to close them.
func (a *Umem) Transfer(sockets []*Socket) (_ *Transfer, err error) {
	t := &Transfer{Version: TransferVersion, Frames: a.Frames(), FrameSize: a.frameSize}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("transfer packet memory: %w", err), t.Close())
		}
	}()
	if err := t.add(a.fd); err != nil {
		return nil, err
	}
	owners, err := a.ownersFile()
	if err != nil {
		return nil, err
	}
	t.fds = append(t.fds, owners)
	for _, s := range sockets {
		if err := t.add(s.fd); err != nil {
			return nil, err
		}
		t.Sockets = append(t.Sockets, TransferSocket{
			IfIndex: s.cfg.IfIndex, Queue: s.cfg.Queue, RingSize: s.cfg.RingSize,
			Owner: uint16(s.owner), Umem: s.group.asked, Group: s.group.number,
			MultiBuffer: s.group.multiBuffer, Metadata: s.group.metadata,
		})
	}
	return t, nil
}

// add adds a copy of a descriptor: that of the caller may be closed.
func (t *Transfer) add(fd int) error {
	own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("copy descriptor %d: %w", fd, err)
	}
	t.fds = append(t.fds, own)
	return nil
}

// ownersFile writes the owners of the frames to a memory file.
func (a *Umem) ownersFile() (int, error) {
	fd, err := unix.MemfdCreate("weir-frames", unix.MFD_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("owners of the frames: %w", err)
	}
	b := ownersBytes(a.owners)
	if n, err := unix.Pwrite(fd, b, 0); err != nil || n != len(b) {
		return -1, errors.Join(fmt.Errorf("owners of the frames: %d of %d bytes: %w", n, len(b), err), unix.Close(fd))
	}
	return fd, nil
}

func ownersBytes(list []ownerID) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(list))), len(list)*int(unsafe.Sizeof(ownerID(0))))
}

// Files are the descriptors that travel beside the message.
func (t *Transfer) Files() []int { return t.fds }

// SetFiles gives a Transfer that has arrived its descriptors, which are its own from then on.
func (t *Transfer) SetFiles(fds []int) { t.fds = fds }

// Close closes the descriptors that Receive has not taken. Sockets without another owner are
// unbound.
func (t *Transfer) Close() error {
	var errs []error
	for _, fd := range t.fds {
		errs = append(errs, unix.Close(fd))
	}
	t.fds = nil
	return errors.Join(errs...)
}

// Receive goes on with the memory and the sockets of another process. On error all
// descriptors are closed.
func (t *Transfer) Receive() (_ *Umem, _ []*Socket, err error) {
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("packet memory of the last process: %w", err), t.Close())
		}
	}()
	if t.Version != TransferVersion || len(t.fds) != firstSocket+len(t.Sockets) {
		return nil, nil, fmt.Errorf("version %d, %d descriptors of %d sockets", t.Version, len(t.fds), len(t.Sockets))
	}
	a, err := mapUmem(t.fds[0], t.Frames, t.FrameSize)
	if err != nil {
		return nil, nil, err
	}
	t.fds = t.fds[1:] // that of the memory is a's
	var sockets []*Socket
	defer func() {
		if err == nil {
			return
		}
		for _, s := range sockets {
			err = errors.Join(err, s.Close())
		}
		err = errors.Join(err, a.Close())
	}()
	b := ownersBytes(a.owners)
	if n, err := unix.Pread(t.fds[0], b, 0); err != nil || n != len(b) {
		return nil, nil, fmt.Errorf("owners of the frames: %d of %d bytes: %w", n, len(b), err)
	}
	_ = unix.Close(t.fds[0])
	t.fds = t.fds[1:]
	for i := range t.Sockets {
		s, err := a.receiveSocket(&t.Sockets[i], t.fds[0])
		if err != nil {
			return nil, nil, err
		}
		t.fds = t.fds[1:]
		sockets = append(sockets, s)
	}
	a.freeOrphans()
	return a, sockets, nil
}

// receiveSocket goes on with a socket of another process. On error fd stays open.
func (a *Umem) receiveSocket(t *TransferSocket, fd int) (_ *Socket, err error) {
	number := t.Owner >> 1
	if t.Owner != number<<1 || number == 0 || number >= maxSockets || a.usedIDs[number] {
		return nil, fmt.Errorf("socket of interface %d queue %d has number %d", t.IfIndex, t.Queue, number)
	}
	if err := checkRingSize(t.RingSize); err != nil {
		return nil, err
	}
	s := &Socket{
		umem: a, fd: fd, frameMask: a.frameMask, owner: ownerID(t.Owner),
		cfg: Config{IfIndex: t.IfIndex, Queue: t.Queue, RingSize: t.RingSize, Umem: t.Umem},
	}
	granted, err := options(fd)
	if err == nil {
		err = s.mapRings()
	}
	if err == nil && !s.resume() {
		err = fmt.Errorf("no rings of %d", t.RingSize)
	}
	if err != nil {
		for _, m := range s.maps {
			_ = unix.Munmap(m)
		}
		return nil, fmt.Errorf("socket of interface %d queue %d: %w", t.IfIndex, t.Queue, err)
	}
	s.zeroCopy = granted&unix.XDP_OPTIONS_ZEROCOPY != 0
	a.usedIDs[number] = true
	s.group = a.groupNumbered(t, s.zeroCopy)
	s.group.sockets = append(s.group.sockets, s)
	return s, nil
}

// resume goes on with the rings as they are, and reports whether they may be so.
func (s *Socket) resume() bool {
	for _, r := range []*indices{&s.fill.indices, &s.completion.indices, &s.rx.indices, &s.tx.indices} {
		if !r.resume() {
			return false
		}
	}
	return true
}

// freeOrphans frees the frames of sockets that have not come: the last process closed them, and
// could not know when the device was done with their frames. By now it is.
func (a *Umem) freeOrphans() {
	for f, o := range a.owners {
		if n := o >> 1; n >= maxSockets || !a.usedIDs[n] {
			a.owners[f] = 0
		}
	}
}

// groupNumbered finds or makes the group of a socket of another process.
func (a *Umem) groupNumbered(t *TransferSocket, zeroCopy bool) *group {
	i := slices.IndexFunc(a.groups, func(g *group) bool { return g.number == t.Group })
	if i >= 0 {
		return a.groups[i]
	}
	g := &group{number: t.Group, asked: t.Umem, zeroCopy: zeroCopy, multiBuffer: t.MultiBuffer, metadata: t.Metadata}
	a.groups = append(a.groups, g)
	a.registrations = max(a.registrations, g.number+1)
	return g
}

// Adopt has a socket of another process serve as one that Open would return for cfg, and
// reports whether it does. Preconditions: nobody uses the sockets of the umem.
func (s *Socket) Adopt(cfg Config) bool {
	if cfg.RingSize == 0 {
		cfg.RingSize = DefaultRingSize
	}
	if cfg.IfIndex != s.cfg.IfIndex || cfg.Queue != s.cfg.Queue || cfg.RingSize != s.cfg.RingSize ||
		cfg.Umem != s.cfg.Umem || cfg.MultiBuffer != s.group.multiBuffer ||
		cfg.Mode == Copy && s.zeroCopy || cfg.Mode == ZeroCopy && !s.zeroCopy || s.Unbound() {
		return false
	}
	if cfg.SendOnly {
		if receiving, _ := s.umem.Held(s); receiving > 0 {
			return false // nobody would take these frames back
		}
	}
	s.cfg = cfg
	s.grantMetadata()
	return true
}

// Held returns how many frames the kernel has through a socket: to receive into, and to send
// from. Preconditions: nobody uses the sockets of the umem.
func (a *Umem) Held(s *Socket) (receiving, sending int) {
	for _, o := range a.owners {
		switch o {
		case s.owner:
			receiving++
		case s.owner | forTransmit:
			sending++
		}
	}
	return receiving, sending
}

// FreeFrames returns the frames that the kernel does not have. Preconditions: nobody uses the
// sockets of the umem.
func (a *Umem) FreeFrames() (free []uint64) {
	for f, o := range a.owners {
		if o == 0 {
			free = append(free, a.Addr(f))
		}
	}
	return free
}
