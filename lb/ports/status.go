package ports

import "github.com/weirlb/weir/lb/xsk"

// Status is an attached interface, or the host veth.
type Status struct {
	Name   string
	Index  int
	Driver string
	// Mode is the granted mode, the least of the queues' modes: zerocopy, native or
	// generic; "" before the attachment.
	Mode string
	// Hook is where packets are taken, xdp or tcx, and HookReason why there.
	Hook, HookReason string
	// Repeated is nil without a flow cache, and for VLANs.
	Repeated *Repeated
	Queues   int
	MTU      int
	HostVeth bool
	// Of a bond's member and a VLAN: the interface that it is a port of, the
	// device whose queues carry it, the VLAN's number, and whether the bond does
	// not use it now.
	Interface, Device string
	VLAN              int
	Inactive          bool
	Pinned            bool
	Metadata          bool // partial checksums are completed by TX metadata
	MultiBuffer       bool
	Lost              Lost // since the start
	Sockets           []SocketStatus
}

// Repeated counts the packets for Weir that arrived on an interface: those that the kernel
// has forwarded by the flow table, and those that it steered to the sockets.
type Repeated struct {
	Packets, Bytes, Steered uint64
}

// SocketStatus is an AF_XDP socket and the kernel's counters of it.
type SocketStatus struct {
	Queue    int
	Mode     string // granted: zerocopy, native, generic; "" before attachment
	Umem     int    // number of its umem
	Rejected uint64 // descriptors from the kernel that cannot be
	Kernel   xsk.Statistics
}

// Status lists the ports that are attached or about to be.
func (ps *Ports) Status() (list []Status) {
	for _, p := range ps.list.ports {
		if p.state <= joining {
			list = append(list, ps.statusOf(p))
		}
	}
	return list
}

func (ps *Ports) statusOf(p *port) Status {
	st := Status{
		Name: p.name, Index: p.index, Driver: p.driver, Queues: p.queues, MTU: p.mtu, HostVeth: p.host,
		Lost: p.lost.since(),
	}
	d := ps.list.deviceOf(p)
	st.Hook, st.HookReason = d.hook.String(), ps.steering.hookReason(d)
	if d.attachment != nil {
		st.Mode, st.Pinned = d.granted(), d.attachment.Pinned
	}
	if d != p || p.routeIndex != p.index && !p.host {
		st.Interface, st.Device, st.VLAN = p.parent, d.name, int(uint16(p.tag))
		st.Inactive = !p.active && p.routeIndex != 0
	}
	if p.isVLAN() {
		_, st.Metadata, st.MultiBuffer = d.sockets[0].Granted()
	}
	for q, s := range p.sockets {
		_, st.Metadata, st.MultiBuffer = s.Granted()
		k, err := s.Statistics()
		if err != nil {
			ps.log.Debug("socket statistics", "interface", p.name, "queue", q, "err", err)
		}
		st.Sockets = append(st.Sockets, SocketStatus{
			Queue: q, Mode: p.grantedTo(s), Umem: s.UmemID(), Rejected: s.Rejected(), Kernel: k,
		})
	}
	return st
}
