package ports

import (
	"fmt"

	"github.com/weirlb/weir/lb/steer"
)

// chooseHook chooses the hook of a device, with the reason, or says why the hook that was
// asked for cannot be had.
func (st *steering) chooseHook(p *port) error {
	switch {
	case p.host && !st.list.anyTCX():
		p.hook, p.hookWhy = steer.XDP, "no attached interface has hook tcx"
		return nil
	case !p.host && p.hookAsked == HookXDP:
		p.hook, p.hookWhy = steer.XDP, "it is configured"
		return nil
	}
	cannot := st.cannotTCX(p) // which may load the program: that takes time
	switch asked := p.hookAsked; {
	case p.host && cannot == "":
		p.hook, p.hookWhy = steer.TCX, "as the attached interfaces: pods' answers stay large"
	case p.host:
		p.hook, p.hookWhy = steer.XDP, "tcx: "+cannot
	case asked == HookTCX && cannot != "":
		return fmt.Errorf("hook: tcx: %s", cannot)
	case asked == HookTCX:
		p.hook, p.hookWhy = steer.TCX, "it is configured"
	case cannot != "":
		p.hook, p.hookWhy = steer.XDP, "tcx: "+cannot
	case Software(p.driver, p.name):
		p.hook, p.hookWhy = steer.TCX, "a "+p.driver+" keeps segmentation offload"
	default:
		p.hook, p.hookWhy = steer.XDP, "a NIC"
	}
	return nil
}

// cannotTCX is why a device cannot have the TCX hook, "" if it can.
func (st *steering) cannotTCX(p *port) string {
	if st.noCache != nil {
		return "the kernel forwards no flows: " + st.noCache.Error()
	}
	switch err := st.program.TCX(); {
	case err != nil:
		return err.Error()
	case p.mode == ModeZeroCopy || p.mode == ModeGeneric:
		return "excludes mode: " + p.mode
	}
	return ""
}

// LeftToLoop has, for the end of the reason of a hook, the packets that the kernel does not forward
// there however settled the flow: see PROTOCOLS.md. kind is that of Software.
func LeftToLoop(h steer.Hook, kind string) string {
	switch {
	case h == steer.TCX:
		return "; in ipip and gue packets with partial checksums take the packet loop"
	case kind == veth:
		return "; packets with partial checksums take the packet loop"
	}
	return ""
}

// hookReason is why a device has its hook, and what the hook does not do.
func (st *steering) hookReason(p *port) string {
	why := p.hookWhy
	if st.noCache != nil {
		return why
	}
	why += LeftToLoop(p.hook, p.driver)
	if p.hook != steer.XDP {
		return why
	}
	if p.steersOnly {
		why += "; packets that arrive here take the packet loop, which gets them by zero copy"
	}
	if !p.noTarget {
		return why
	}
	why += "; packets that leave here take the packet loop, as XDP cannot redirect to it: "
	switch {
	case p.unknown:
		return why + "the kernel does not say whether the driver can (Linux 6.3 says it)"
	case p.fewQueues:
		return why + "it has fewer queues than the node has CPUs, and its driver loses packets on the others (ethtool -L)"
	case p.driver == veth:
		return why + "its peer has neither GRO nor XDP"
	}
	return why + "the driver cannot"
}
