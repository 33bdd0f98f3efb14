package hostcheck

import (
	"fmt"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"

	"github.com/weirlb/weir/cmd/weir/config"
	"github.com/weirlb/weir/lb/device"
)

// ownPrograms begins the names of all of Weir's programs.
const ownPrograms = "weir_"

// checkPrograms looks for programs of others on the devices that Weir attaches to.
func checkPrograms(fs *findings, cfg *config.Configuration) {
	links, err := device.Links()
	if err != nil {
		return // the start will tell
	}
	for _, in := range cfg.Attached() {
		resolved, _ := device.Resolve(in.Name, links) // checkInterfaces has told
		for _, p := range resolved {
			if dev, err := netlink.LinkByIndex(p.Device); err == nil {
				checkXDP(fs, cfg, in, dev)
				checkTCX(fs, dev)
			}
		}
	}
}

// checkXDP reports an XDP program of another: a device has room for a single program.
// Beside hook tcx a native program may stay, and takes packets before Weir.
func checkXDP(fs *findings, cfg *config.Configuration, in config.Interface, dev netlink.Link) {
	xdp, subject := dev.Attrs().Xdp, "interface "+dev.Attrs().Name
	if xdp == nil || !xdp.Attached {
		return
	}
	name, known := programName(ebpf.ProgramID(xdp.ProgId))
	switch {
	case strings.HasPrefix(name, ownPrograms):
		return
	case !known:
		fs.add(Note, subject, "XDP program %d is attached, which cannot be named without privileges", xdp.ProgId)
		return
	}
	level, meaning := Wrong, "Weir cannot attach"
	if hook, _ := hookOf(cfg, in, dev); hook == config.HookTCX && xdp.AttachMode == nl.XDP_ATTACHED_DRV {
		level, meaning = Note, "it gets packets before Weir"
	}
	fs.add(level, subject, "XDP program %s (id %d) of another is attached: %s", name, xdp.ProgId, meaning)
	fs.mend("%s", detachXDP(dev, xdp))
}

// detachXDP is the command that takes a program off: attachments by a bpf_link and by
// netlink end in different manners.
func detachXDP(dev netlink.Link, xdp *netlink.LinkXdp) string {
	var it link.Iterator
	defer it.Close()
	for it.Next() {
		info, err := it.Link.Info()
		if err == nil && info.XDP() != nil && int(info.XDP().Ifindex) == dev.Attrs().Index && uint32(info.Program) == xdp.ProgId {
			return fmt.Sprintf("bpftool link detach id %d", info.ID)
		}
	}
	mode := "xdpdrv"
	if xdp.AttachMode == nl.XDP_ATTACHED_SKB {
		mode = "xdpgeneric"
	}
	return fmt.Sprintf("ip link set dev %s %s off", dev.Attrs().Name, mode)
}

// checkTCX reports programs of others that come before the program of Weir, if it is there.
func checkTCX(fs *findings, dev netlink.Link) {
	result, err := link.QueryPrograms(link.QueryOptions{Target: dev.Attrs().Index, Attach: ebpf.AttachTCXIngress})
	if err != nil {
		return // before Linux 6.6, or without privileges
	}
	var before []string
	for _, p := range result.Programs {
		name, known := programName(p.ID)
		if strings.HasPrefix(name, ownPrograms) {
			for _, b := range before {
				fs.add(Note, "interface "+dev.Attrs().Name, "TCX program %s of another gets packets before Weir", b)
			}
			return
		}
		if known {
			before = append(before, fmt.Sprintf("%s (id %d)", name, p.ID))
		}
	}
}

// programName is the name of a program, and whether the kernel has told. Programs without a
// name are "unnamed".
func programName(id ebpf.ProgramID) (name string, known bool) {
	p, err := ebpf.NewProgramFromID(id)
	if err != nil {
		return "", false
	}
	defer p.Close()
	info, err := p.Info()
	if err != nil {
		return "", false
	}
	if info.Name == "" {
		return "unnamed", true
	}
	return info.Name, true
}
