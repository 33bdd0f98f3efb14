package daemon

import (
	"cmp"
	"context"
	"encoding/binary"
	"net/netip"
	"slices"
	"sync/atomic"

	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/cmd/weir/translate"
	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/header"
	"github.com/weirlb/weir/lb/table"
)

// Flows implements api.Source.
func (d *Daemon) Flows(ctx context.Context, limit int, match *api.FlowMatcher) (*api.FlowList, error) {
	t := d.lb.FlowTable()
	out := &api.FlowList{Total: uint64(t.Flows()), Flows: []api.Flow{}}
	now := t.Tick()
	t.Range(func(r conntrack.Ref) bool {
		if ctx.Err() != nil {
			return false
		}
		e := t.Entry(r)
		if !match.Tuple(e.Key.Src(), e.Key.Dst(), t.NewDst(r)) {
			return true
		}
		c := t.Conn(r)
		service, state := d.lb.Tables().ServiceName(atomic.LoadUint32(&c.ServiceID)), c.State().String()
		if !match.Rest(service, state) {
			return true
		}
		if len(out.Flows) == limit {
			out.Truncated = true
			return false
		}
		var snat netip.AddrPort
		if e.Mode == conntrack.ModeNAT {
			snat = t.NewSrc(r)
		}
		out.Flows = append(out.Flows, api.Flow{
			Protocol: header.ProtocolName(e.Key.Proto()),
			Client:   e.Key.Src(), Frontend: e.Key.Dst(), SNAT: snat, Endpoint: t.NewDst(r),
			Service: service,
			Mode:    translate.ModeName(e.Mode), State: state,
			IdleSeconds: float64(c.Idle(now)) / conntrack.TicksPerSecond,
		})
		return true
	})
	return out, ctx.Err()
}

// Verify implements api.Source.
func (d *Daemon) Verify(ctx context.Context) (*api.Verification, error) {
	v, err := d.lb.FlowTable().Verify(ctx)
	if err != nil {
		return nil, err
	}
	out := &api.Verification{Connections: v.Connections, Slots: v.Slots, Faults: v.Faults, FaultsLeftOut: v.More}
	if out.Faults == nil {
		out.Faults = []string{}
	}
	return out, nil
}

// Drops implements api.Source.
func (d *Daemon) Drops(context.Context) (*api.DropList, error) {
	out := &api.DropList{Packets: []api.DroppedPacket{}}
	now, snapshot := d.lb.FlowTable().Tick(), d.lb.Tables().Load()
	for _, s := range d.lb.DropSamples() {
		p := api.DroppedPacket{
			Reason: s.Reason.String(), Text: s.Reason.Text(), Size: s.Size, Interface: d.lb.InterfaceName(s.Port),
			AgeSeconds: float64(now-s.Tick) / conntrack.TicksPerSecond,
		}
		if src, dst, proto, ok := tupleOf(s.Data); ok {
			p.Protocol, p.Source, p.Destination = header.ProtocolName(proto), textOf(src), textOf(dst)
			key := table.MakeKey(dst, proto)
			if f := snapshot.Lookup(&key); f != nil {
				p.Service = f.ServiceName
			}
		}
		out.Packets = append(out.Packets, p)
	}
	slices.SortStableFunc(out.Packets, func(a, b api.DroppedPacket) int {
		return cmp.Or(cmp.Compare(a.Reason, b.Reason), cmp.Compare(a.AgeSeconds, b.AgeSeconds))
	})
	return out, nil
}

func textOf(a netip.AddrPort) string {
	if a.Port() == 0 {
		return a.Addr().String()
	}
	return a.String()
}

// tupleOf reads the addresses of a frame, and the ports where the transport
// header follows the IP header at once. It is for people: unreadable parts are left out.
func tupleOf(f []byte) (src, dst netip.AddrPort, proto uint8, ok bool) {
	at := 12
	for len(f) >= at+4 && (binary.BigEndian.Uint16(f[at:]) == 0x8100 || binary.BigEndian.Uint16(f[at:]) == 0x88a8) {
		at += 4
	}
	if len(f) < at+2 {
		return
	}
	kind, ip := binary.BigEndian.Uint16(f[at:]), f[at+2:]
	var a, b netip.Addr
	var rest []byte
	switch {
	case kind == 0x0800 && len(ip) >= 20:
		a, b, proto = netip.AddrFrom4([4]byte(ip[12:16])), netip.AddrFrom4([4]byte(ip[16:20])), ip[9]
		if header := int(ip[0]&15) * 4; header >= 20 && header <= len(ip) && binary.BigEndian.Uint16(ip[6:])&0x1fff == 0 {
			rest = ip[header:]
		}
	case kind == 0x86dd && len(ip) >= 40:
		a, b, proto, rest = netip.AddrFrom16([16]byte(ip[8:24])), netip.AddrFrom16([16]byte(ip[24:40])), ip[6], ip[40:]
	default:
		return
	}
	var ports [2]uint16
	if len(rest) >= 4 && (proto == conntrack.ProtoTCP || proto == conntrack.ProtoUDP || proto == conntrack.ProtoSCTP) {
		ports = [2]uint16{binary.BigEndian.Uint16(rest), binary.BigEndian.Uint16(rest[2:])}
	}
	return netip.AddrPortFrom(a, ports[0]), netip.AddrPortFrom(b, ports[1]), proto, true
}
