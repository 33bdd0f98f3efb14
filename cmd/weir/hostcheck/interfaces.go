package hostcheck

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"

	"github.com/weirlb/weir/cmd/weir/config"
	"github.com/weirlb/weir/lb/device"
	"github.com/weirlb/weir/lb/ports"
	"github.com/weirlb/weir/lb/steer"
	"github.com/weirlb/weir/lb/xsk"
)

// checkInterfaces examines each interface that exists; Configuration.CheckHost reports
// those that do not.
func checkInterfaces(fs *findings, cfg *config.Configuration) {
	links, _ := device.Links() // without it the start will tell
	for _, in := range cfg.Attached() {
		dev, err := net.InterfaceByName(in.Name)
		if err != nil {
			continue
		}
		subject := "interface " + in.Name
		switch {
		case len(dev.HardwareAddr) != 6:
			fs.add(Wrong, subject, "is not an Ethernet interface: Weir reads and writes Ethernet frames")
			continue
		case dev.Flags&net.FlagUp == 0:
			fs.add(Wrong, subject, "is down")
			fs.mend("ip link set %s up", in.Name)
			continue
		}
		carriers, err := device.Resolve(in.Name, links)
		if err != nil && len(links) > 0 {
			fs.add(Wrong, subject, "%s", strings.TrimPrefix(err.Error(), subject+": "))
			continue
		}
		checkMode(fs, subject, in, dev)
		xdp := checkHook(fs, cfg, in, carriers)
		checkMTU(fs, subject, dev, len(cfg.HostVeth.Prefixes) > 0)
		if xdp { // tcx finds tags beside packets
			checkPeerTags(fs, subject, carriers, links)
		}
		if xdp && in.Mode != config.ModeGeneric { // else veth runs no program
			checkPeerLists(fs, subject, carriers, links)
		}
	}
}

// checkMTU reports an MTU whose packets the kernel does not deliver. Before Linux 5.18 the
// host veth, which gets the MTU, takes no XDP program then.
func checkMTU(fs *findings, subject string, dev *net.Interface, hostVeth bool) {
	text := ports.TooLarge(dev.MTU)
	switch {
	case text == "" || xsk.ProbeMultiBuffer().OK():
	case hostVeth && !steer.ProbeFrags().OK():
		fs.add(Wrong, subject, "%s", text)
	default:
		fs.add(Note, subject, "%s", text)
	}
}

func checkMode(fs *findings, subject string, in config.Interface, dev *net.Interface) {
	f, err := xsk.DeviceFeatures(dev.Index)
	if err != nil {
		fs.add(Note, subject, "the driver does not say what it can do (%v): the start will tell", err)
		return
	}
	best := config.ModeGeneric
	switch {
	case f.ZeroCopy():
		best = config.ModeZeroCopy
	case f.Native():
		best = config.ModeNative
	}
	switch {
	case in.Mode == config.ModeZeroCopy && !f.ZeroCopy():
		fs.add(Wrong, subject, "the driver has no AF_XDP zero copy: the best mode is %s", best)
	case in.Mode == config.ModeNative && !f.Native():
		fs.add(Wrong, subject, "the driver runs no XDP programs: the best mode is %s", best)
	default:
		fs.add(OK, subject, "mtu %d, best mode %s%s", dev.MTU, best, queues(dev))
	}
}

// queues formats the number of receive queues of an interface, of a bond that of each
// member: the bond's number has no meaning.
func queues(dev *net.Interface) string {
	if members, err := os.ReadFile(filepath.Join("/sys/class/net", dev.Name, "bonding/slaves")); err == nil {
		text := ", bond"
		for _, name := range strings.Fields(string(members)) {
			if m, err := net.InterfaceByName(name); err == nil {
				text += " of " + name + strings.Replace(queues(m), ",", ":", 1)
			}
		}
		return text
	}
	qs, err := xsk.DeviceQueues(dev.Index)
	if err != nil {
		return ""
	}
	if len(qs) == 1 {
		return ", 1 receive queue"
	}
	return fmt.Sprintf(", %d receive queues", len(qs))
}
