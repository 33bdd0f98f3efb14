package ports

import (
	"errors"
	"fmt"
	"slices"

	"github.com/weirlb/weir/lb/steer"
	"github.com/weirlb/weir/lb/warning"
	"github.com/weirlb/weir/lb/xsk"
)

// MaxDevices is the number of devices that the packet memory must be made for: those
// that there are, and spare ones for bonds.
func (ps *Ports) MaxDevices() int {
	n := ps.Devices()
	if ps.bonded {
		n += SpareMembers
	}
	return n
}

// Open binds a socket to every queue that a worker owns. Sockets of the last process that
// serve as such take their place, and the others are closed. The ports keep program and
// memory, which has frames for MaxDevices of FrameSize. Preconditions: SetWorkers.
func (ps *Ports) Open(program *steer.Program, memory *xsk.Umem, last []*xsk.Socket) error {
	ps.program, ps.memory, ps.maxDevices = program, memory, ps.MaxDevices()
	ps.last = last
	defer ps.closeLast()
	for id, p := range ps.list {
		if p.isVLAN() {
			continue
		}
		if err := ps.openQueues(id, p); err != nil {
			return err
		}
	}
	return nil
}

// openQueues binds a socket to every queue of a port that a worker owns.
func (ps *Ports) openQueues(id int, p *port) error {
	if err := ps.chooseHook(id, p); err != nil {
		return fmt.Errorf("interface %s: %w", p.name, err)
	}
	if p.hook == steer.TCX {
		if err := ps.openPair(id, p); err != nil {
			return fmt.Errorf("interface %s: %w", p.name, err)
		}
	}
	if err := ps.openDevice(p); err != nil {
		return err
	}
	if err := ps.checkMetadata(p); err != nil {
		return err
	}
	p.openedMTU = p.mtu
	ps.warnMTU(p)

	// The last step: sockets of a port that fails are not noted, see steer.Program.Hold.
	return ps.steerTo(id, p)
}

// openDevice binds sockets to the queues of a device that a worker owns and that have none.
func (ps *Ports) openDevice(p *port) error {
	mode, err := ps.socketMode(p)
	if err != nil {
		return fmt.Errorf("interface %s: %w", p.name, err)
	}
	if p.hook == steer.TCX {
		mode = xsk.Copy
	}
	metadata, zeroCopyOnly := metadataFor(p.txChecksum, p.driver)
	for q := len(p.sockets); q < min(p.queues, ps.workers); q++ {
		s, err := ps.openSocket(xsk.Config{
			IfIndex: p.index, Queue: q, Mode: mode,
			Umem:                 ps.umem(p),
			TxMetadata:           metadata && !ps.cfg.Testing.SoftwareChecksums,
			MetadataZeroCopyOnly: zeroCopyOnly,
			MultiBuffer:          p.mtu > largestMTU(ps.memory.FrameSize()) && ps.program.Frags(),
			SendOnly:             p.hook == steer.TCX,
		})
		if err != nil {
			return fmt.Errorf("interface %s queue %d: %w", p.name, q, err)
		}
		p.sockets = append(p.sockets, s)
	}
	return nil
}

// openSocket returns a socket of the last process, or else opens one.
func (ps *Ports) openSocket(cfg xsk.Config) (*xsk.Socket, error) {
	for i, s := range ps.last {
		if s.Adopt(cfg) {
			ps.last = slices.Delete(ps.last, i, i+1)
			return s, nil
		}
	}
	// A socket that does not serve as this one holds the queue.
	ps.last = slices.DeleteFunc(ps.last, func(s *xsk.Socket) bool {
		other := s.IfIndex() == cfg.IfIndex && s.Queue() == cfg.Queue
		if other {
			ps.closeSocketOfLast(s)
		}
		return other
	})
	return xsk.Open(ps.memory, cfg)
}

// closeLast closes the sockets of the last process that no port has.
func (ps *Ports) closeLast() {
	for _, s := range ps.last {
		ps.closeSocketOfLast(s)
	}
	ps.last = nil
}

// closeSocketOfLast closes a socket of the last process. With zero copy the device may use its frames
// for some time, and they are lost until the next start.
func (ps *Ports) closeSocketOfLast(s *xsk.Socket) {
	zeroCopy, _, _ := s.Granted()
	if err := s.Close(); err != nil {
		ps.log.Error("close sockets of the last process", "err", err)
	}
	if !zeroCopy {
		ps.memory.ReclaimAll(s, nil)
	}
}

// steerTo gives the steering program the sockets of a port.
func (ps *Ports) steerTo(id int, p *port) error {
	var fds []int
	for _, s := range p.receiving() {
		fds = append(fds, s.FD())
	}
	if err := ps.program.SetSockets(id, fds); err != nil {
		return fmt.Errorf("interface %s: %w", p.name, err)
	}
	return nil
}

// Steer gives the steering program all sockets again, after Unsteer.
func (ps *Ports) Steer() error {
	var errs []error
	for id, p := range ps.list {
		errs = append(errs, ps.steerTo(id, p))
	}
	return errors.Join(errs...)
}

// Unsteer leaves all packets to the kernel, and the sockets open.
func (ps *Ports) Unsteer() error {
	var errs []error
	for id, p := range ps.list {
		for _, s := range p.receiving() {
			errs = append(errs, ps.program.ClearSocket(id, s.Queue()))
		}
	}
	return errors.Join(errs...)
}

// warnMTU warns of packets that the kernel does not deliver.
func (ps *Ports) warnMTU(p *port) {
	if p.host || len(p.sockets) == 0 {
		return
	}
	_, _, several := p.sockets[0].Granted()
	if text := tooLarge(p.mtu, p.openedMTU, largestMTU(ps.memory.FrameSize()), several); text != "" {
		ps.warnings.Replace(warning.MTU, p.name, text)
	} else {
		ps.warnings.Retract(warning.MTU, p.name)
	}
}

// tooLarge describes the packets that an interface loses because of its MTU; "": none.
// opened is the MTU for which the sockets were opened, several whether packets of several
// buffers were granted.
func tooLarge(mtu, opened, largest int, several bool) string {
	if several || mtu <= largest {
		return ""
	}
	remedy := "AF_XDP multi-buffer is not granted (Linux 6.6 has it): lower the MTU"
	if opened <= largest {
		remedy = "restart Weir to use buffers for this MTU"
	}
	return fmt.Sprintf("its MTU is %d, and packets of more than %d bytes are lost: %s", mtu, largest, remedy)
}

// TooLarge describes, for an MTU, the packets that are lost on kernels without AF_XDP
// multi-buffer; "": none.
func TooLarge(mtu int) string { return tooLarge(mtu, mtu, largestMTU(xsk.FrameSize), false) }

// closeSockets closes the sockets of a port. The kernel still uses their frames.
func (ps *Ports) closeSockets(p *port) {
	if err := p.closeSockets(); err != nil {
		ps.log.Error("close sockets", "interface", p.name, "err", err)
	}
}

// closeSockets closes the sockets of a port, and removes its veth pair.
func (p *port) closeSockets() error {
	var errs []error
	for _, s := range p.all() {
		errs = append(errs, s.Close())
	}
	if p.pair != nil {
		errs = append(errs, p.pair.Close())
	}
	return errors.Join(errs...)
}

// umem is the number of the umem of a port: all share one, unless a test asks for two.
func (ps *Ports) umem(p *port) int {
	if p.host && ps.cfg.Testing.OwnHostUmem {
		return 1
	}
	return 0
}

// largestMTU is the MTU up to which a packet fits into a frame, with its tags and some
// room to spare.
func largestMTU(frameSize int) int { return frameSize - xsk.Headroom - 256 }

// FrameSize is the size of the frames that the packet memory must have, and why it is
// not the smallest.
//
// Frames are large where a packet does not fit into a small frame, and where zero copy
// may be granted. Intel's drivers tell the NIC the size of a receive buffer in units of
// 1,024 bytes (SRRCTL.BSIZEPKT in igb, igc and ixgbe). Of a frame of 2,048 bytes there
// remain 1,792 behind the headroom, so that the NIC splits each packet of more than
// 1,024 bytes, and igb passes on the pieces as packets. Small frames are for veth and
// copy mode, where a packet is cheaper with them.
func (ps *Ports) FrameSize() (size int, why string) {
	if ps.cfg.FrameSize != 0 {
		return ps.cfg.FrameSize, "it is configured"
	}
	for _, p := range ps.list {
		if p.mtu > largestMTU(xsk.SmallFrameSize) {
			return xsk.FrameSize, fmt.Sprintf("the MTU of %s is %d", p.name, p.mtu)
		}
	}
	for _, p := range ps.list {
		if p.mayZeroCopy() {
			return xsk.FrameSize, fmt.Sprintf("%s may run with zero copy, where some NICs "+
				"split packets of more than 1,024 bytes if frames are smaller", p.name)
		}
	}
	return xsk.SmallFrameSize, ""
}

// socketMode is the mode that sockets of a port are opened in.
func (ps *Ports) socketMode(p *port) (xsk.Mode, error) {
	small := ps.cfg.FrameSize == 0 && ps.memory.FrameSize() < xsk.FrameSize
	switch {
	case small && p.mayZeroCopy() && p.mode == ModeZeroCopy:
		return xsk.ZeroCopy, errFrames
	case small && p.mayZeroCopy():
		ps.warn(p, "runs without zero copy: %v", errFrames)
		return xsk.Copy, nil
	case p.mode == ModeZeroCopy:
		return xsk.ZeroCopy, nil
	case !p.mayZeroCopy(): // to be refused takes tens of milliseconds, when connections wait
		return xsk.Copy, nil
	}
	return xsk.Auto, nil
}
