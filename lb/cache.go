package lb

import (
	"errors"
	"fmt"
	"runtime"

	"github.com/cilium/ebpf"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/flowcache"
	"github.com/weirlb/weir/lb/ports"
	"github.com/weirlb/weir/lb/route"
	"github.com/weirlb/weir/lb/steer"
	"github.com/weirlb/weir/lb/table"
	"github.com/weirlb/weir/lb/warning"
)

// maxServices is the number of Services that the flow cache knows as gone. One with a greater
// number would end the cache.
const maxServices = 1 << 20

// cache is the memory by which the kernel forwards packets of established flows.
type cache struct {
	kernel   *flowcache.Cache // nil: the packet loop forwards every packet
	off      error            // why the kernel forwards none, nil if it does
	warnings *warning.List
}

// open makes the memory that the kernel reads. Without it, also where the kernel lacks
// something, the packet loop forwards every packet.
func (c *cache) open(wanted bool, pinDir string) {
	if !wanted {
		c.off = errors.New("flowCache.mode is off")
		return
	}
	// The barriers between the program's loads have not run on a machine that needs them.
	if !steer.LoadsInOrder(runtime.GOARCH) {
		c.disable(fmt.Errorf("it is not proven on %s, which does not keep loads in order", runtime.GOARCH))
		return
	}
	kernel, err := flowcache.New(flowcache.Config{
		PinDir: pinDir, NextHops: route.DefaultMaxAdjacencies + 1,
		Endpoints: table.DefaultMaxEndpoints, Services: maxServices,
	})
	if err != nil {
		c.disable(err)
		return
	}
	c.kernel = kernel
}

// disable has the packet loop forward every packet, as the kernel lacks something.
func (c *cache) disable(err error) {
	c.off = err
	c.warnings.Add(warning.PacketPath, "",
		"flow cache: the packet loop forwards packets of established flows, not the kernel: %v", err)
}

// memory is the memory of the flow table, nil for a file. earlier, if not nil, is to
// be closed when the table is open.
func (c *cache) memory(pinDir string) (m conntrack.Memory, earlier *flowcache.Earlier, err error) {
	if c.kernel != nil {
		return c.kernel, nil, nil
	}
	if earlier, err = flowcache.OpenEarlier(pinDir); earlier != nil {
		m = earlier
	}
	return m, earlier, err
}

// share gives the program in the kernel the flow table.
func (c *cache) share(flows *conntrack.Table) error {
	if c.kernel == nil {
		return nil
	}
	if err := flows.Restoration().MemoryErr; err != nil {
		c.disable(err)
		err := c.kernel.Close()
		c.kernel = nil
		return err
	}
	return c.kernel.SetTable(flows)
}

// save moves a flow table that the kernel has read into its file. A start that fails, of which opened
// is false, leaves the table in the memory that the program of an earlier process reads.
func (c *cache) save(flows *conntrack.Table, opened bool) error {
	if c.kernel == nil || !opened && c.kernel.Inherited() {
		return nil
	}
	return c.kernel.Save(flows)
}

// maps are those of the program in the kernel, nil without it.
func (c *cache) maps() map[string]*ebpf.Map {
	if c.kernel == nil {
		return nil
	}
	return c.kernel.Maps()
}

// adjacencies is the memory of the next hops, nil for the watcher's own.
func (c *cache) adjacencies() []route.Adjacency {
	if c.kernel == nil {
		return nil
	}
	return c.kernel.Adjacencies()
}

// publish gives the program in the kernel the devices by which it may send, and the
// veth pairs by which packets reach the packet loop.
func (c *cache) publish(ps *ports.Ports) error {
	if c.kernel == nil {
		return nil
	}
	var by [flowcache.MaxPorts]ports.Device
	for _, d := range ps.Forwarding() {
		by[d.ID] = d
	}
	for id, d := range by {
		p := flowcache.Port{IfIndex: uint32(d.IfIndex), VLAN: flowcache.VLANTag(d.Tag)}
		if d.XDP {
			p.Flags |= flowcache.PortXDP
		}
		if d.XDPFrag {
			p.Flags |= flowcache.PortXDPFrag
		}
		if err := c.kernel.SetPort(id, p); err != nil {
			return err
		}
		if err := c.kernel.SetUp(id, uint32(d.Up)); err != nil {
			return err
		}
	}
	return nil
}

// renew keeps packets from the kernel that a capture is to see.
func (c *cache) renew() {
	if c.kernel != nil {
		c.kernel.Renew()
	}
}

// endpointRemoved sends the packets of an endpoint's flows to the packet loop, while the
// endpoint is not one of its Service port.
func (c *cache) endpointRemoved(number uint32, removed bool) {
	if c.kernel != nil {
		c.kernel.SetEndpointRemoved(number, removed)
	}
}

// addRepeated adds to the interfaces the packets that the kernel has forwarded.
func (c *cache) addRepeated(list []ports.Status, program *steer.Program) {
	if c.off != nil {
		return
	}
	counters, err := program.Counters()
	if err != nil {
		return
	}
	for _, n := range counters {
		r, err := c.kernel.Repeated(n.Slot)
		if err != nil {
			continue
		}
		for i := range list {
			if list[i].Index == n.IfIndex {
				list[i].Repeated = &ports.Repeated{
					Packets: r.Packets, Bytes: r.Bytes, Steered: n.Packets[steer.Redirected],
				}
			}
		}
	}
}
