package ports

import (
	"github.com/weirlb/weir/lb/steer"
	"github.com/weirlb/weir/lb/xsk"
)

// View is a port for a worker.
type View struct {
	Host       bool
	RouteIndex int // the interface index in routes
	// Queue is the worker's socket, nil when another worker owns the port's only
	// queues, and when the port is going. It sends, and it receives unless Receive is
	// not nil.
	Queue, Receive *xsk.Socket
	// Owner is the worker that sends for this worker.
	Owner int
	// VLANParent is the ID of a VLAN's device, and Tag the VLAN's EtherType and number.
	VLANParent int
	Tag        uint32
	Metadata   bool // partial checksums are completed by TX metadata
	ZeroCopy   bool // the device itself writes received packets
}

// View returns a port for a worker. A port that is closing has neither queue nor another
// owner: packets that are still to leave by it are dropped.
func (ps *Ports) View(id, worker int) View {
	p := ps.list.ports[id]
	v := View{Host: p.host, RouteIndex: p.routeIndex, Owner: worker}
	switch {
	case p.state > leaving:
	case p.isVLAN():
		v.Tag, v.VLANParent = p.tag, p.vlanParent
		_, v.Metadata, _ = ps.list.ports[p.vlanParent].sockets[0].Granted()
	case worker < len(p.sockets):
		v.Queue = p.sockets[worker]
		v.ZeroCopy, v.Metadata, _ = v.Queue.Granted()
		if p.hook == steer.TCX {
			v.Receive = p.inner[worker]
		}
	default:
		v.Owner = worker % len(p.sockets)
	}
	return v
}

// Sockets are the sockets of a worker, which it waits for.
func (ps *Ports) Sockets(worker int) (list []*xsk.Socket) {
	for _, p := range ps.list.ports {
		if r := p.receiving(); p.state <= leaving && worker < len(r) {
			list = append(list, r[worker])
		}
	}
	return list
}

// Device is a port of the program in the kernel that forwards by the flow table.
type Device struct {
	ID      int
	IfIndex int // 0 while no packet may leave by it
	// Tag is of a VLAN, whose packets leave by IfIndex with it: EtherType and number.
	Tag uint32
	// Up is the interface by which a TCX program sends packets up, 0 without one.
	Up int
	// XDP and XDPFrag report whether an XDP program may redirect packets to it, and those
	// of several buffers.
	XDP, XDPFrag bool
}

// Forwarding lists the devices for the program in the kernel.
func (ps *Ports) Forwarding() (list []Device) {
	for id, p := range ps.list.ports {
		if p.state > joining {
			continue
		}
		under := ps.list.deviceOf(p)
		d := Device{ID: id, Tag: p.tag}
		if p.pair != nil {
			d.Up = p.pair.Outer
		}
		if under.attachment != nil && p.active {
			d.IfIndex = under.index
		}
		f, err := xsk.DeviceFeatures(under.index)
		if p.unknown = err != nil; !p.unknown {
			d.XDP, d.XDPFrag = f.Redirect(), f.RedirectMultiBuffer()
		}
		if p.fewQueues = d.XDP && !under.sendsFromEachCPU(); p.fewQueues {
			d.XDP, d.XDPFrag = false, false
		}
		p.noTarget = !d.XDP
		list = append(list, d)
	}
	return list
}
