package answers

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"

	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/cmd/weir/translate"
	"github.com/weirlb/weir/lb"
	"github.com/weirlb/weir/lb/header"
	"github.com/weirlb/weir/lb/localports"
	"github.com/weirlb/weir/lb/pcapfilter"
	"github.com/weirlb/weir/lb/route"
	"github.com/weirlb/weir/lb/steer"
	"github.com/weirlb/weir/lb/tap"
	"github.com/weirlb/weir/lb/worker"
)

// Trace implements api.Source.
func (src *Source) Trace(_ context.Context, q *api.TraceQuery) (*api.Trace, error) {
	proto, _ := header.ProtocolNumber(q.Protocol)
	flags, err := q.FlagBits()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", api.ErrInvalid, err)
	}
	t, err := src.LB.Trace(lb.TraceQuery{
		Proto: proto, Source: q.Source, Destination: q.Destination, Interface: q.Interface,
		Flags: flags, TTL: uint8(q.TTL), Payload: q.Payload, DontFragment: q.DontFragment, Frame: q.Frame,
	})
	if errors.Is(err, lb.ErrTrace) || errors.Is(err, worker.ErrTraceSize) {
		return nil, fmt.Errorf("%w: %w", api.ErrInvalid, err)
	}
	if err != nil {
		return nil, err
	}
	out := &api.Trace{
		Protocol: header.ProtocolName(t.Proto), Source: tracedEnd(t.Source), Destination: tracedEnd(t.Destination),
		Flags: flagNames(t.Flags), Interface: t.Interface, Size: t.Size,
		Frontend: src.tracedFrontend(t), Connection: src.tracedConnection(t),
	}
	if t.SteeringErr != nil {
		out.SteeringError = t.SteeringErr.Error()
	} else {
		out.Steering = t.Steering.String()
	}
	if t.SteeringErr == nil && t.Steering != steer.Redirected && t.Steering != steer.Denied {
		out.Verdict = "kernel"
		return out, nil
	}
	out.Verdict = t.Verdict.String()
	if t.HasReason {
		out.Reason, out.Text, out.DenyList = t.Reason.String(), t.Reason.Text(), t.DenyList
	}
	if t.Choice != worker.NoChoice {
		out.Choice = src.tracedChoice(t)
	}
	out.NextHop, out.Sent = src.tracedHop(t), src.tracedPacket(t)
	return out, nil
}

// tracedEnd is an end of a packet, which has a port where the protocol has ports.
func tracedEnd(a netip.AddrPort) string { return endText(a.Addr(), a.Port()) }

// flagNames are the names of TCP flags.
func flagNames(bits uint8) string {
	var names []string
	for i, name := range api.TraceFlags {
		if bits>>i&1 != 0 {
			names = append(names, name)
		}
	}
	return strings.Join(names, ",")
}

func (src *Source) tracedFrontend(t *lb.Trace) *api.TracedFrontend {
	fe := t.Entry
	if fe == nil {
		return nil
	}
	out := &api.TracedFrontend{
		Address: fe.Address(), Service: fe.ServiceName, Kind: fe.Kind.String(), Tier: fe.Pool.Tier(),
		Endpoints: fe.Pool.Len(), Open: t.Open,
	}
	if p := fe.Policy; p != nil {
		out.MaxConnections, out.NewConnectionsPerSecond = p.MaxConnections, p.NewConnectionsPerSecond
	}
	return out
}

func (src *Source) tracedConnection(t *lb.Trace) *api.TracedConnection {
	if !t.Existing && !t.Created {
		return nil
	}
	out := &api.TracedConnection{
		Existing: t.Existing, From: "client", Service: src.LB.Tables().ServiceName(t.ServiceID),
		Client: t.Client.String(), Frontend: t.Frontend.String(), Endpoint: t.Endpoint.String(), Mode: translate.ModeName(t.Mode),
	}
	if t.Existing {
		out.State = t.State.String()
	}
	if t.FromEndpoint {
		out.From = "endpoint"
	}
	if t.SNAT.IsValid() {
		out.SNAT = t.SNAT.String()
	}
	if t.Created && t.PortLo != 0 {
		out.SNATPorts = localports.Range{Lo: t.PortLo, Hi: t.PortHi}.Text()
	}
	return out
}

// maxCandidates bounds the endpoints in the answer to a trace.
const maxCandidates = 100

func (src *Source) tracedChoice(t *lb.Trace) *api.TracedChoice {
	pool := t.Entry.Pool
	out := &api.TracedChoice{
		Rule: t.Choice.String(), Algorithm: pool.Algorithm().String(), AffinitySeconds: pool.AffinitySeconds(),
		Hash: fmt.Sprintf("%016x", t.Hash), Endpoint: t.Endpoint.String(), Candidates: []api.TracedEndpoint{},
	}
	list := pool.Endpoints()
	out.LeftOut = max(0, len(list)-maxCandidates)
	for i := range list[:min(len(list), maxCandidates)] {
		e := &list[i]
		out.Candidates = append(out.Candidates, api.TracedEndpoint{
			Address: e.AddrPort.String(), Weight: e.Weight, Local: e.Local, Open: src.LB.FlowTable().EndpointOpen(e.ID),
		})
	}
	return out
}

func (src *Source) tracedHop(t *lb.Trace) *api.TracedHop {
	if !t.HasPath {
		return nil
	}
	out := &api.TracedHop{
		Interface: src.LB.InterfaceName(t.Path.Port), Address: t.Path.NextHop.String(), Neighbor: t.Neighbor.String(),
		MTU: t.Path.MTU, ByHost: t.Path.Kind == route.Host,
	}
	if t.Neighbor == route.Valid {
		out.MAC = net.HardwareAddr(t.MAC[:]).String()
	}
	return out
}

func (src *Source) tracedPacket(t *lb.Trace) *api.TracedPacket {
	if t.Out < 0 {
		return nil
	}
	var f pcapfilter.Packet
	pcapfilter.Read(t.Sent, len(t.Sent), &f)
	out := &api.TracedPacket{
		Interface: src.LB.InterfaceName(t.Out), Protocol: header.ProtocolName(f.Proto),
		Source: endText(f.Src, f.SrcPort), Destination: endText(f.Dst, f.DstPort), Size: len(t.Sent),
	}
	if t.More > 0 {
		out.Fragments = t.More + 1
	}
	var p header.Packet
	if header.Parse(t.Sent, len(t.Sent), &p) == header.Truncated {
		return out
	}
	out.TTL = int(p.TTL)
	if t.Verdict == tap.Reply || t.Verdict == tap.Challenge {
		out.Answer = answerName(t.Sent, &p)
	}
	return out
}

// answerName names an answer that Weir has made.
func answerName(frame []byte, p *header.Packet) string {
	l4 := frame[p.L4:]
	switch p.Proto {
	case header.ProtoTCP:
		return "TCP " + strings.ToUpper(flagNames(header.TCP(l4).Flags()))
	case header.ProtoSCTP:
		return "SCTP ABORT"
	case header.ProtoICMP:
		return fmt.Sprintf("ICMP type %d code %d", l4[0], l4[1])
	case header.ProtoICMPv6:
		return fmt.Sprintf("ICMPv6 type %d code %d", l4[0], l4[1])
	}
	return ""
}
