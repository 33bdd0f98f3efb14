package chaos

import (
	"errors"
	"fmt"
	"strings"

	"github.com/weirlb/weir/perf/netlab"
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

// asFromWire are the settings of a host whose packets have whole checksums, as if they came by
// a wire.
var asFromWire = map[string]bool{"rx-gro": true, "tx-checksum-ip-generic": false}

// arrange prepares the peers of the attached interfaces: XDP programs can send to a veth only
// if its peer polls, and leave packets with partial checksums to the packet loop.
func (n *node) arrange() error {
	if n.cfg.Hook != "xdp" {
		return nil
	}
	var errs []error
	for _, host := range []*netlab.Namespace{n.Client, n.ZoneA, n.ZoneB} {
		errs = append(errs, host.SetOffloads("eth0", asFromWire))
	}
	return errors.Join(append(errs, n.arrangeFabric())...)
}

// arrangeFabric is arrange for the peer of eth1.
func (n *node) arrangeFabric() error {
	if n.cfg.Hook != "xdp" {
		return nil
	}
	return n.Fabric.SetOffloads("edge", map[string]bool{"rx-gro": true})
}

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
