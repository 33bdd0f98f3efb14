package chaos

import (
	"fmt"
	"strings"
)

// Arrangements are who forwards packets of established flows: the packet loop, or the kernel
// at a hook of the attached interfaces. auto is tcx on a veth.
var Arrangements = []string{"off", "xdp", "auto"}

// ArrangementOf returns the arrangement of a seed. Seed 1 has the packet loop, 2 and 3 the
// kernel.
func ArrangementOf(seed uint64) string {
	return Arrangements[(seed+uint64(len(Arrangements))-1)%uint64(len(Arrangements))]
}

// interfaceLines are the lines of Weir's configuration for the arrangement.
func (c *Config) interfaceLines() string {
	if !c.cached() {
		return "flowCache: {mode: \"off\"}\ninterfaces: [{name: eth0}, {name: eth1}]"
	}
	return fmt.Sprintf("flowCache: {mode: auto}\ninterfaces: [{name: eth0, hook: %[1]s}, {name: eth1, hook: %[1]s}]", c.Hook)
}

// cached reports whether the kernel forwards packets of established flows.
func (c *Config) cached() bool { return c.Hook != "" && c.Hook != Arrangements[0] }

// repeated are the packets that the kernel has forwarded for this process.
func (s *status) repeated() (n uint64) {
	for _, i := range s.Interfaces {
		n += i.Repeated.Packets
	}
	return n
}

// stays reports whether a difference of two states of the node is the flow table, which a stop
// leaves for the next start: in memory of the kernel it is pinned.
func (n *node) stays(line string) bool {
	const pins = "+ pin /sys/fs/bpf/weir"
	return n.cfg.cached() && (strings.HasPrefix(line, pins+": ") || strings.HasPrefix(line, pins+"/flowtable-"))
}
