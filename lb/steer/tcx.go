package steer

import (
	"errors"
	"fmt"
	"path/filepath"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/lb/xsk"
)

// Hook is the place in the kernel's receive path at which an interface's packets are
// taken.
type Hook uint8

const (
	// XDP: before the kernel makes a packet buffer, or, in generic mode, soon after.
	XDP Hook = iota
	// TCX: behind GRO, with the interface's offloads as they are, but for LRO. Packets for
	// the packet loop take a veth pair, whose inner end has the steering program.
	TCX
)

func (h Hook) String() string {
	switch h {
	case XDP:
		return "xdp"
	case TCX:
		return "tcx"
	}
	return fmt.Sprintf("hook(%d)", uint8(h))
}

// pinSuffix ends the names of the hook's pins. Names of interfaces have no colon.
func (h Hook) pinSuffix() string {
	if h == TCX {
		return ":tcx"
	}
	return ""
}

// ErrTCX is wrapped by errors about interfaces that cannot have the TCX hook.
var ErrTCX = errors.New("hook tcx")

// attachTCX attaches the steering program to the inner end of the interface's veth pair,
// and then the TCX program to the interface.
func (l links) attachTCX(in Interface, name string) (_ *Attachment, err error) {
	if err := l.checkTCX(in); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrTCX, err)
	}
	inner, err := netlink.LinkByIndex(in.Inner)
	if err != nil {
		return nil, fmt.Errorf("%w: inner end of the veth pair: %w", ErrTCX, err)
	}
	below := in
	below.Index, below.Hook, below.Mode = in.Inner, XDP, Native
	below.Steers, below.All = true, true // they have been looked up
	down, err := l.attachHook(below, inner.Attrs().Name)
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrTCX, inner.Attrs().Name, err)
	}
	a, err := l.attachHook(in, name)
	if err != nil {
		return nil, errors.Join(err, down.end(true))
	}
	a.inner = down
	return a, nil
}

// checkTCX refuses arrangements in which packets would be lost or misread.
func (l links) checkTCX(in Interface) error {
	err := l.programs.tcx()
	switch {
	case err != nil:
		return err
	case in.Mode == Generic:
		return errors.New("excludes mode: generic")
	}
	// Generic XDP copies the packet buffer, and the TCX program then finds the IP header
	// where the Ethernet header should be. Native XDP of another program takes packets
	// before TCX has them.
	if mode, err := attachedMode(in.Index); err == nil && mode == Generic {
		return errors.New("an XDP program in generic mode is attached: " +
			"TCX programs cannot read packets that have passed it")
	}
	return nil
}

// newTCX makes a TCX link before all other programs of the interface.
func (l links) newTCX(ifindex int) (link.Link, error) {
	prog, err := l.programs.ingress()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrTCX, err)
	}
	made, err := link.AttachTCX(link.TCXOptions{
		Interface: ifindex, Program: prog, Attach: ebpf.AttachTCXIngress, Anchor: link.Head(),
	})
	if err != nil {
		return nil, fmt.Errorf("%w: %w%s", ErrTCX, err, loadErrorHint(err))
	}
	return made, nil
}

// removeOtherHook detaches the program that an earlier process has pinned at the other hook
// of an interface: a program at both would see each packet twice. path is the pin of the
// hook that is wanted.
func removeOtherHook(path string, in Interface, pins []pinned) error {
	var errs []error
	for _, p := range pins {
		if p.index != in.Index || p.hook == in.Hook || !sameNetns(p.path, path) {
			continue
		}
		l, err := openPin(p.path)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		errs = append(errs, l.Unpin(), detachLink(l), l.Close())
	}
	return errors.Join(errs...)
}

// linkIfIndex returns the interface of a link, 0 if it is gone or the link is of neither
// hook.
func linkIfIndex(l link.Link) int {
	index, _ := linkPlace(l)
	return index
}

// linkPlace returns the interface of a link, as linkIfIndex, and the hook.
func linkPlace(l link.Link) (index int, h Hook) {
	info, err := l.Info()
	if err != nil {
		return 0, XDP
	}
	switch {
	case info.XDP() != nil:
		return int(info.XDP().Ifindex), XDP
	case info.TCX() != nil:
		return int(info.TCX().Ifindex), TCX
	}
	return 0, XDP
}

// detachLink takes a link's program off its interface, also where another process holds
// the link too.
func detachLink(l link.Link) error {
	err := l.Detach()
	if errors.Is(err, link.ErrNotSupported) || errors.Is(err, unix.ENODEV) ||
		errors.Is(err, unix.ENOLINK) {
		return nil // it is off, or the kernel cannot
	}
	return err
}

// ProbeTCX attaches a TCX program that passes everything to the loopback interface of a
// new network namespace.
func ProbeTCX() xsk.Probe {
	p := xsk.Probe{Name: "TCX programs", Kernel: "6.6", Without: "has no hook tcx"}
	p.Err = inNewNetns(func() error {
		prog, err := passIngress()
		if err != nil {
			return err
		}
		defer prog.Close()
		l, err := link.AttachTCX(link.TCXOptions{Interface: 1, Program: prog, Attach: ebpf.AttachTCXIngress})
		if err != nil {
			return err
		}
		return l.Close()
	})
	return p
}

// pinPath is the pin of an interface's link at a hook.
func pinPath(dir string, ns uint64, name string, h Hook) string {
	return filepath.Join(dir, fmt.Sprintf("%d-%s%s", ns, name, h.pinSuffix()))
}
