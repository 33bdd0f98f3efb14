package hostcheck

import (
	"errors"
	"io/fs"
	"runtime"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/cmd/weir/config"
	"github.com/weirlb/weir/lb/device"
	"github.com/weirlb/weir/lb/ports"
	"github.com/weirlb/weir/lb/steer"
	"github.com/weirlb/weir/lb/xsk"
)

// The view of other programs of the node on Weir's packets at each hook, by the place of the hook in
// the kernel's paths. In every mode Netfilter sees none of them.
const (
	seenAtTCX = "tcpdump sees Weir's packets as they arrive; Netfilter, mirrors and tc filters at ingress do not. " +
		"At egress tcpdump, mirrors, tc filters and the queueing discipline see the packets that the kernel forwards, " +
		"not those of the packet loop"
	seenAtXDP = "tcpdump, Netfilter, mirrors and tc filters see none of Weir's packets, neither as they arrive nor as they leave"
)

// lacks is why the kernel cannot have what is probed, "" if it can or that cannot be found out now.
func lacks(p xsk.Probe) string {
	if p.OK() || errors.Is(p.Err, fs.ErrPermission) || errors.Is(p.Err, unix.EBUSY) {
		return ""
	}
	return "needs " + p.Name + " (Linux " + p.Kernel + " has them)"
}

// noFlowTable is why the kernel cannot look flows up, "" if it can.
func noFlowTable() string {
	if p := steer.ProbeBPFFS(""); errors.Is(p.Err, steer.ErrNotBPFFS) {
		return "the kernel forwards no flows: " + p.Err.Error()
	}
	if !steer.LoadsInOrder(runtime.GOARCH) {
		return "the kernel forwards no flows on " + runtime.GOARCH
	}
	return lacks(steer.ProbeFlowTable())
}

// checkSNATPorts reports the ports of connections on the machine's addresses.
func checkSNATPorts(f *findings, cfg *config.Configuration) {
	if cfg.SNAT.Ports != (config.PortRange{}) {
		return
	}
	switch why := noFlowTable(); {
	case cfg.FlowCache.Mode == config.FlowCacheOff:
		f.add(OK, "SNAT ports", "%s: flowCache.mode is off", cfg.SNAT.Range())
	case why != "":
		f.add(Note, "SNAT ports", "%s, which is fewer than elsewhere: %s", cfg.SNAT.Range(), why)
	default:
		f.add(OK, "SNAT ports", "%s and 1024-29999, but for those that the machine uses", cfg.SNAT.Range())
	}
}

// hookOf is the hook that a start would choose for a device, with the reason: see ports.Interface.
func hookOf(cfg *config.Configuration, in config.Interface, dev netlink.Link) (hook, why string) {
	cannot := noFlowTable()
	if cannot == "" {
		cannot = lacks(steer.ProbeTCX())
	}
	switch {
	case cfg.FlowCache.Mode == config.FlowCacheOff:
		return config.HookXDP, "flowCache.mode is off: all packets take the packet loop"
	case in.Hook != config.HookAuto:
		return in.Hook, "it is configured"
	case in.Mode == config.ModeZeroCopy || in.Mode == config.ModeGeneric:
		return config.HookXDP, "tcx: excludes mode: " + in.Mode
	case cannot != "":
		return config.HookXDP, "tcx: " + cannot
	case ports.Software(dev.Type(), dev.Attrs().Name):
		return config.HookTCX, "the device keeps segmentation offload"
	}
	return config.HookXDP, "a NIC"
}

// checkHook reports the hook of each device of an interface, and what others see there. It
// returns whether a device has hook xdp.
func checkHook(f *findings, cfg *config.Configuration, in config.Interface, carriers []device.Port) (xdp bool) {
	var seen []int
	for _, p := range carriers {
		dev, err := netlink.LinkByIndex(p.Device)
		if err != nil || slices.Contains(seen, p.Device) {
			continue // the start will tell
		}
		seen = append(seen, p.Device)
		subject := "interface " + dev.Attrs().Name
		hook, why := hookOf(cfg, in, dev)
		at, sees := steer.TCX, seenAtTCX
		if hook == config.HookXDP {
			xdp, at, sees = true, steer.XDP, seenAtXDP
		}
		if cfg.FlowCache.Mode != config.FlowCacheOff {
			why += ports.LeftToLoop(at, dev.Type())
		}
		if features, err := xsk.DeviceFeatures(p.Device); xdp && err == nil && features.ZeroCopy() && in.Mode == config.ModeAuto {
			why += "; with zero copy packets that arrive take the packet loop"
		}
		f.add(OK, subject, "hook %s: %s", hook, why)
		f.add(OK, subject, "hook %s: %s", hook, sees)
	}
	if in.Hook != config.HookTCX {
		return xdp
	}
	for _, p := range []xsk.Probe{steer.ProbeFlowTable(), steer.ProbeTCX()} {
		if why := lacks(p); why != "" {
			f.add(Wrong, "interface "+in.Name, "hook: tcx %s", why)
		}
	}
	return xdp
}
