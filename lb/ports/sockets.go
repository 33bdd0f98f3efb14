package ports

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"

	"github.com/weirlb/weir/lb/steer"
	"github.com/weirlb/weir/lb/uppair"
	"github.com/weirlb/weir/lb/warning"
	"github.com/weirlb/weir/lb/xsk"
)

// opener opens the sockets of ports in the packet memory.
type opener struct {
	frameSize  int // configured, or 0
	testing    Testing
	program    *steer.Program
	memory     *xsk.Umem
	last       []*xsk.Socket // of the last process, until Open has returned
	workers    int
	queueCount map[string]int // receive queues of a device when it was last attached, by name
	warnings   *warning.List
	log        *slog.Logger
}

// errFrames is why a device that is new since the start cannot have zero copy.
var errFrames = errors.New("zero copy needs packet memory with frames of 4,096 bytes, " +
	"which is made at the start: restart Weir")

// openDevice binds sockets to the queues of a device that a worker owns and that have none.
func (o *opener) openDevice(p *port) error {
	mode, err := o.socketMode(p)
	if err != nil {
		return fmt.Errorf("interface %s: %w", p.name, err)
	}
	if p.hook == steer.TCX {
		mode = xsk.Copy
	}
	metadata, zeroCopyOnly := metadataFor(p.txChecksum, p.driver)
	for q := len(p.sockets); q < min(p.queues, o.workers); q++ {
		s, err := o.openSocket(xsk.Config{
			IfIndex: p.index, Queue: q, Mode: mode,
			Umem:                 o.umem(p),
			TxMetadata:           metadata && !o.testing.SoftwareChecksums,
			MetadataZeroCopyOnly: zeroCopyOnly,
			MultiBuffer:          o.severalBuffers(p),
			SendOnly:             p.hook == steer.TCX,
		})
		if err != nil {
			return fmt.Errorf("interface %s queue %d: %w", p.name, q, err)
		}
		p.sockets = append(p.sockets, s)
	}
	return nil
}

// openPair makes the veth pair of a device with hook TCX, and binds a socket to each of the
// pair's queues, to receive. Packets leave by sockets of the device itself.
func (o *opener) openPair(id int, p *port) (err error) {
	queues := min(p.queues, o.workers)
	if p.pair, err = uppair.Open(uppair.Config{Slot: id, Queues: queues, MTU: p.mtu}); err != nil {
		return err
	}
	for q := range queues {
		s, err := o.openSocket(xsk.Config{
			IfIndex: p.pair.Inner, Queue: q, Mode: xsk.Copy, Umem: o.umem(p),
			MultiBuffer: o.severalBuffers(p),
		})
		if err != nil {
			return fmt.Errorf("%s queue %d: %w", p.pair.Name, q, err)
		}
		p.inner = append(p.inner, s)
	}
	return nil
}

// openSocket returns a socket of the last process, or else opens one.
func (o *opener) openSocket(cfg xsk.Config) (*xsk.Socket, error) {
	for i, s := range o.last {
		if s.Adopt(cfg) {
			o.last = slices.Delete(o.last, i, i+1)
			return s, nil
		}
	}
	// A socket that does not serve as this one holds the queue.
	o.last = slices.DeleteFunc(o.last, func(s *xsk.Socket) bool {
		other := s.IfIndex() == cfg.IfIndex && s.Queue() == cfg.Queue
		if other {
			o.closeSocketOfLast(s)
		}
		return other
	})
	return xsk.Open(o.memory, cfg)
}

// closeLast closes the sockets of the last process that no port has.
func (o *opener) closeLast() {
	for _, s := range o.last {
		o.closeSocketOfLast(s)
	}
	o.last = nil
}

// closeSocketOfLast closes a socket of the last process. With zero copy the device may use its frames
// for some time, and they are lost until the next start.
func (o *opener) closeSocketOfLast(s *xsk.Socket) {
	zeroCopy, _, _ := s.Granted()
	if err := s.Close(); err != nil {
		o.log.Error("close sockets of the last process", "err", err)
	}
	if !zeroCopy {
		o.memory.ReclaimAll(s, nil)
	}
}

// severalBuffers reports whether a packet of a port may take several frames.
func (o *opener) severalBuffers(p *port) bool {
	return p.mtu > largestMTU(o.memory.FrameSize()) && o.program.Frags()
}

// umem is the number of the umem of a port: all share one, unless a test asks for two.
func (o *opener) umem(p *port) int {
	if p.host && o.testing.OwnHostUmem {
		return 1
	}
	return 0
}

// socketMode is the mode that sockets of a port are opened in.
func (o *opener) socketMode(p *port) (xsk.Mode, error) {
	small := o.frameSize == 0 && o.memory.FrameSize() < xsk.FrameSize
	switch {
	case small && p.mayZeroCopy() && p.mode == ModeZeroCopy:
		return xsk.ZeroCopy, errFrames
	case small && p.mayZeroCopy():
		o.warnings.Add(warning.Interface, p.name, "runs without zero copy: %v", errFrames)
		return xsk.Copy, nil
	case p.mode == ModeZeroCopy:
		return xsk.ZeroCopy, nil
	case !p.mayZeroCopy(): // to be refused takes tens of milliseconds, when connections wait
		return xsk.Copy, nil
	}
	return xsk.Auto, nil
}

// checkMetadata compares the TX metadata that a port was granted with the configuration.
func (o *opener) checkMetadata(p *port) error {
	if p.host || len(p.sockets) == 0 {
		return nil
	}
	zeroCopy, metadata, _ := p.sockets[0].Granted()
	switch {
	case metadata:
	case p.txChecksum == TxChecksumMetadata:
		return fmt.Errorf("interface %s: txChecksum: metadata is not granted, "+
			"by the kernel or with zero copy by the driver (%v): use auto or software",
			p.name, xsk.ProbeTxMetadata())
	case p.txChecksum != TxChecksumSoftware && !zeroCopy && p.sockets[0].KernelMetadata():
		o.log.Info("partial checksums are completed in software: "+
			"before Linux 6.18 some drivers ignore TX metadata in copy mode; "+
			"txChecksum: metadata uses it all the same", "interface", p.name)
	}
	return nil
}

// warnMTU warns of packets that the kernel does not deliver.
func (o *opener) warnMTU(p *port) {
	if p.host || len(p.sockets) == 0 {
		return
	}
	_, _, several := p.sockets[0].Granted()
	if text := tooLarge(p.mtu, p.openedMTU, largestMTU(o.memory.FrameSize()), several); text != "" {
		o.warnings.Replace(warning.MTU, p.name, text)
	} else {
		o.warnings.Retract(warning.MTU, p.name)
	}
}

// warnQueues warns of receive queues without a worker, and of a device that came back
// with another number of queues.
func (o *opener) warnQueues(p *port) {
	if p.isVLAN() {
		return
	}
	o.warnings.Retract(warning.Queues, p.name)
	if had, ok := o.queueCount[p.name]; ok && had != p.queues {
		o.warnings.Add(warning.Queues, p.name, "it came back with %d receive queues and had %d: "+
			"workers without one of their own take no packets from it", p.queues, had)
	}
	o.queueCount[p.name] = p.queues
	if p.queues > o.workers {
		o.warnings.Add(warning.Queues, p.name, "%d of its %d receive queues have no worker, their packets go to the kernel: "+
			"run `ethtool -L %s combined %d`", p.queues-o.workers, p.queues, p.name, o.workers)
	}
}

// followMTU takes over the MTU of a port's interface. Routes and next hops follow by
// themselves.
func (o *opener) followMTU(p *port, mtu int) {
	if mtu == p.mtu || mtu <= 0 {
		return
	}
	o.log.Info("interface has another MTU", "interface", p.name, "mtu", mtu, "before", p.mtu)
	p.mtu = mtu
	o.warnMTU(p)
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

// largestMTU is the MTU up to which a packet fits into a frame, with its tags and some
// room to spare.
func largestMTU(frameSize int) int { return frameSize - xsk.Headroom - 256 }
