package answers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/cmd/weir/translate"
	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb"
	"github.com/weirlb/weir/lb/header"
	"github.com/weirlb/weir/lb/pcapfilter"
	"github.com/weirlb/weir/lb/table"
	"github.com/weirlb/weir/lb/tap"
	"github.com/weirlb/weir/lb/worker"
)

// Drops implements api.Source.
func (src *Source) Drops(_ context.Context, match *api.DropFilter) (*api.DropList, error) {
	if match.Reason != "" && !slices.Contains(worker.DropReasons(), match.Reason) {
		return nil, fmt.Errorf("%w: reason %q: the reasons are %s", api.ErrInvalid, match.Reason, strings.Join(worker.DropReasons(), ", "))
	}
	out := &api.DropList{Packets: []api.DroppedPacket{}}
	now, at := src.LB.FlowTable().Tick(), time.Now()
	for _, s := range src.LB.DropSamples() {
		if match.Reason != "" && match.Reason != s.Reason.String() {
			continue
		}
		if p := src.droppedPacket(&s, now, at); src.matchesDrop(match, &s, p) {
			out.Packets = append(out.Packets, *p)
		}
	}
	slices.SortStableFunc(out.Packets, func(a, b api.DroppedPacket) int {
		return cmp.Or(cmp.Compare(a.Reason, b.Reason), cmp.Compare(a.AgeSeconds, b.AgeSeconds))
	})
	return out, nil
}

func (src *Source) matchesDrop(match *api.DropFilter, s *worker.DropSample, p *api.DroppedPacket) bool {
	if match.Service != "" && match.Service != p.Service {
		return false
	}
	if !match.Prefix.IsValid() {
		return true
	}
	var f pcapfilter.Packet
	pcapfilter.Read(s.Data, s.Size, &f)
	return f.Family != 0 && (match.Prefix.Contains(f.Src) || match.Prefix.Contains(f.Dst))
}

// droppedPacket is a sample for people, at tick now.
func (src *Source) droppedPacket(s *worker.DropSample, now uint32, at time.Time) *api.DroppedPacket {
	age := float64(now-s.Tick) / conntrack.TicksPerSecond
	p := &api.DroppedPacket{
		Reason: s.Reason.String(), Text: s.Reason.Text(), Size: s.Size, Interface: src.LB.InterfaceName(s.Port),
		AgeSeconds: age, Time: at.Add(-time.Duration(age * float64(time.Second))).Round(time.Millisecond),
		Worker: s.Worker, Number: s.Number,
	}
	var f pcapfilter.Packet
	pcapfilter.Read(s.Data, s.Size, &f)
	if f.Family != 0 {
		p.Protocol, p.Source, p.Destination = header.ProtocolName(f.Proto), endText(f.Src, f.SrcPort), endText(f.Dst, f.DstPort)
		p.Service = src.serviceOf(&f)
	}
	if s.Reason == worker.DropDenied {
		key := table.MakeKey(netip.AddrPortFrom(f.Dst, f.DstPort), f.Proto)
		p.DenyList = src.LB.Denials().ListOf(f.Src, src.LB.Tables().Load().Lookup(&key))
	}
	return p
}

// serviceOf is the Service of a packet: that of the frontend to which it goes or from which
// it comes, "" for none.
func (src *Source) serviceOf(f *pcapfilter.Packet) string {
	snapshot := src.LB.Tables().Load()
	for _, a := range []netip.AddrPort{netip.AddrPortFrom(f.Dst, f.DstPort), netip.AddrPortFrom(f.Src, f.SrcPort)} {
		key := table.MakeKey(a, f.Proto)
		if fe := snapshot.Lookup(&key); fe != nil {
			return fe.ServiceName
		}
	}
	return ""
}

// endText is an end of a packet, without the port if there is none.
func endText(a netip.Addr, port uint16) string {
	if port == 0 {
		return a.String()
	}
	return netip.AddrPortFrom(a, port).String()
}

// tapBytes is the memory of a capture for each worker.
const tapBytes = 8 << 20

// tapEvery is the time between two looks at the packets of a capture.
const tapEvery = 20 * time.Millisecond

// Packets implements api.Source.
func (src *Source) Packets(
	ctx context.Context, q *api.PacketQuery, each func(*api.Packet, api.PacketAccount) error,
) error {
	filter, err := pcapfilter.Compile(q.Filter, src.frontendsOf)
	if err != nil {
		return fmt.Errorf("%w: %w", api.ErrInvalid, err)
	}
	cfg := tap.Config{
		Filter: filter, SnapLen: q.SnapLen, Bytes: tapBytes,
		PerSecond: uint32(q.Rate), TicksPerSecond: conntrack.TicksPerSecond,
	}
	t, release, err := src.LB.Tap(cfg)
	if errors.Is(err, lb.ErrTaps) {
		return fmt.Errorf("%w: %w", api.ErrTooMany, err)
	}
	if err != nil {
		return err
	}
	defer release()

	ctx, cancel := context.WithTimeout(ctx, q.Time)
	defer cancel()
	names := map[int32]string{-1: ""}
	name := func(port int32) string {
		s, ok := names[port]
		if !ok {
			s = src.LB.InterfaceName(int(port))
			names[port] = s
		}
		return s
	}
	return readTap(ctx, t, q, func(r *tap.Record) *api.Packet { return src.packet(r, name) }, name, each)
}

// readTap calls each for the records of a tap, until a bound of q is reached or ctx ends. Records
// may come as fast as they are read. name is the name of a port.
func readTap(
	ctx context.Context, t *tap.Tap, q *api.PacketQuery, packet func(*tap.Record) *api.Packet, name func(int32) string,
	each func(*api.Packet, api.PacketAccount) error,
) error {
	tick := time.NewTicker(tapEvery)
	defer tick.Stop()
	account := func() api.PacketAccount { return api.PacketAccount{Lost: t.Lost(), Skipped: t.Skipped()} }
	pause := func() error {
		a := account()
		if a.Lost > 0 {
			a.Interfaces = lostOf(t, name)
		}
		return each(nil, a)
	}
	for packets, bytes, end := 0, 0, false; ; {
		err := pause()
		t.Read(func(r *tap.Record) bool {
			if err == nil && !end {
				err = each(packet(r), account())
			}
			packets++
			bytes += int(r.InLen) + int(r.OutLen)
			end = end || packets >= q.Packets || q.Bytes > 0 && bytes >= q.Bytes || ctx.Err() != nil
			return err == nil && !end
		})
		if err == nil && end {
			err = pause()
		}
		if err != nil || end {
			return err
		}
		select {
		case <-ctx.Done():
			return pause()
		case <-tick.C:
		}
	}
}

// lostOf are the lost frames by interface.
func lostOf(t *tap.Tap, name func(int32) string) (out []api.LostFrames) {
	for port := range int32(tap.MaxPorts) {
		if received, sent := t.LostFrames(port); received+sent > 0 {
			out = append(out, api.LostFrames{Interface: name(port), Received: received, Sent: sent})
		}
	}
	return out
}

// frontendsOf are the frontends of a Service for a filter.
func (src *Source) frontendsOf(name string) (list []pcapfilter.Frontend, err error) {
	for f := range src.LB.Tables().Load().All() {
		if f.ServiceName == name {
			list = append(list, pcapfilter.Frontend{Addr: f.AddrPort, Proto: f.Proto, LastPort: f.LastPort})
		}
	}
	return list, nil
}

// packet is a record for the API. name is the name of a port.
func (src *Source) packet(r *tap.Record, name func(int32) string) *api.Packet {
	p := &api.Packet{
		Time: time.Unix(0, r.Time), ID: r.ID, Verdict: r.Verdict.String(),
		Interface: name(r.In), OutInterface: name(r.Out),
		Size: int(r.InLen), SentSize: int(r.OutLen), Received: r.InData, Sent: r.OutData,
	}
	if r.HasReason {
		reason := worker.Drop(r.Reason)
		p.Reason, p.Text = reason.String(), reason.Text()
	}
	var f pcapfilter.Packet
	if pcapfilter.Read(r.OutData, int(r.OutLen), &f); f.Family != 0 {
		p.SentSource, p.SentDestination = endText(f.Src, f.SrcPort), endText(f.Dst, f.DstPort)
	}
	if pcapfilter.Read(r.InData, int(r.InLen), &f); f.Family != 0 {
		p.Protocol, p.Source, p.Destination = header.ProtocolName(f.Proto), endText(f.Src, f.SrcPort), endText(f.Dst, f.DstPort)
		if f.HasFlags {
			p.Flags = flagNames(f.Flags)
		}
		p.Service = src.serviceOf(&f)
	}
	if r.Conn == 0 {
		return p
	}
	p.Connection, p.Service = fmt.Sprintf("%016x", r.Conn), src.LB.Tables().ServiceName(r.Service)
	p.Mode = translate.ModeName(conntrack.Mode(r.Mode))
	p.Client, p.Frontend, p.Endpoint = r.Client.String(), r.Frontend.String(), r.Endpoint.String()
	if r.SNAT.IsValid() {
		p.SNAT = r.SNAT.String()
	}
	return p
}
