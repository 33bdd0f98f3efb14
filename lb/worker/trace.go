package worker

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync/atomic"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/conntrack/flowstate"
	"github.com/weirlb/weir/lb/affinity"
	"github.com/weirlb/weir/lb/counter"
	"github.com/weirlb/weir/lb/header"
	"github.com/weirlb/weir/lb/route"
	"github.com/weirlb/weir/lb/table"
	"github.com/weirlb/weir/lb/tap"
	"github.com/weirlb/weir/lb/xsk"
)

// A trace asks what the worker would do now with a packet that does not exist. Another
// worker, made for the packet, takes it through the stages. It reads the snapshots, the routes
// and the stores of this worker. What it changes is its own: packet memory, queues, counters,
// and a scratch table with copies of the connections that the packet meets.

// Traced is the outcome of a packet that was traced, with the decisions that led to it.
type Traced struct {
	Verdict tap.Verdict
	// Reason is of a drop or of a refusal, if HasReason.
	Reason    Drop
	HasReason bool
	// Denied is the number of the deny list that has the source, of the reason DropDenied.
	Denied int
	// Out is the port by which Sent leaves, -1 for none. A packet that leaves in fragments
	// has More further ones.
	Out  int
	Sent []byte
	More int

	// Existing is true where the tuple has a connection, or the packet is a connection's of
	// which FromEndpoint sends.
	Existing, FromEndpoint bool
	State                  flowstate.State // of that connection
	// Created is true where the packet makes a connection.
	Created bool
	// The fields up to SNAT are those of the connection; the zero values without any.
	Client, Frontend, Endpoint netip.AddrPort
	Mode                       conntrack.Mode
	ServiceID                  uint32
	// SNAT is the source to which the packet is translated. A new connection takes a port of
	// the range.
	SNAT           netip.AddrPort
	PortLo, PortHi uint16

	// Entry is the frontend to which the packet goes, nil for none.
	Entry *table.FrontendEntry
	// Hash is the hash of the tuple by which all nodes choose.
	Hash uint64
	// Choice is the rule that chose the endpoint of a new connection.
	Choice Choice
	// Open is the number of open connections of the Service.
	Open uint32

	// Path is the path to the next hop, if HasPath, and Neighbor the state of that.
	Path     route.Path
	HasPath  bool
	Neighbor route.State
	MAC      [6]byte // of the neighbor, if that is valid
}

// ErrTraceSize is the error of a trace of a packet in several buffers.
var ErrTraceSize = errors.New("the packet is longer than a frame of the packet memory")

// traceFrames is the number of frames of the packet memory of a trace: the packet, its
// fragments, and what the fill rings keep.
const traceFrames = 256

// traceRepeats bounds how often a packet is traced again with more of the flow table: once for
// each SNAT source and endpoint that a new connection tries.
const traceRepeats = 2 + otherSources + otherEndpoints

// Trace tells what the worker would do now with a frame that comes by port in. ports are all
// ports, whose queues are not used. Any goroutine may call it.
func (w *Worker) Trace(in int, frame []byte, ports []Port) (*Traced, error) {
	memory, err := xsk.NewUmem(traceFrames, w.memory.FrameSize())
	if err != nil {
		return nil, fmt.Errorf("trace: %w", err)
	}
	defer func() { _ = memory.Close() }()
	if room := memory.FrameSize() - xsk.Headroom; len(frame) > room {
		return nil, fmt.Errorf("%w, %d: it has %d bytes", ErrTraceSize, room, len(frame))
	}
	t := tracer{live: w, memory: memory, ports: ports, in: in, frame: frame}
	if err := t.findDatagram(); err != nil {
		return nil, fmt.Errorf("trace: %w", err)
	}
	for range traceRepeats {
		out, more, err := t.run()
		if err != nil {
			return nil, fmt.Errorf("trace: %w", err)
		}
		if !more {
			return out, nil
		}
	}
	return nil, errors.New("trace: the flow table changed all the time")
}

// tracer traces a packet.
type tracer struct {
	live   *Worker
	memory *xsk.Umem
	ports  []Port
	in     int
	frame  []byte
	ranges []conntrack.Ports // of which the scratch table has the connections
	// remembered is whether the client used an endpoint of the frontend last.
	remembered bool
	fragment   tracedFragment
}

// run takes the packet through the stages. more is true where it met a range of ports whose
// connections the scratch table does not have: it is now among the ranges.
func (t *tracer) run() (out *Traced, more bool, err error) {
	key, ports := t.tuple()
	out = &Traced{Out: -1, Hash: table.Hash(&key.W)}
	if ports {
		k := table.DestinationKey(&key.W)
		out.Entry = t.live.frontends.Load().Lookup(&k)
	}
	scratch, err := t.scratch(out, &key)
	if err != nil {
		return nil, false, err
	}
	defer func() { _ = scratch.Close() }()

	w, sinks := t.worker(scratch)
	t.copyAffinity(w, out.Entry, &key)
	t.copyDatagram(w)
	records, err := tap.New(tap.Config{SnapLen: minObserved, Bytes: 1 << 16, Workers: 1})
	if err != nil {
		return nil, false, err
	}
	w.Observe([]*tap.Tap{records})
	before := w.conntrack.Lookup(scratch.Hash(&key), &key)
	if before != 0 {
		out.Existing, out.FromEndpoint, out.State = true, !before.Forward(), scratch.Conn(before).State()
	}
	area := t.memory.Bytes()
	at := t.memory.Addr(0) + xsk.Headroom
	copy(area[at:], t.frame)
	sinks[t.in].in = []xsk.Desc{{Addr: at, Len: uint32(len(t.frame))}}
	w.Round()

	known := false
	records.Read(func(r *tap.Record) bool {
		if r.InLen != 0 { // of several fragments the first
			out.Verdict, out.Reason, out.HasReason, known = r.Verdict, Drop(r.Reason), r.HasReason, true
		}
		return true
	})
	if !known {
		out.Verdict = tap.Queue
	}
	for i := range sinks {
		for _, d := range sinks[i].out {
			if out.Out < 0 {
				out.Out, out.Sent = i, append(out.Sent, area[d.Addr:d.Addr+uint64(d.Len)]...)
			} else {
				out.More++
			}
		}
	}
	out.Denied = max(slices.IndexFunc(w.denied[:], func(n uint64) bool { return n > 0 }), 0)
	out.Created = w.counts[counter.NewFlows] != 0
	out.describe(w, &key, before)
	if o := w.pending.begun(); o != nil {
		out.note(w, o, &key, t)
		if p, ok := rangeOf(o); ok && !slices.Contains(t.ranges, p) {
			t.ranges = append(t.ranges, p)
			return nil, true, nil
		}
	}
	out.follow(w, &key, t)
	return out, false, nil
}

// scratch returns the scratch table, with the connection of the packet.
func (t *tracer) scratch(out *Traced, key *conntrack.Key) (*conntrack.Table, error) {
	live := t.live.conns
	var endpoints []uint32
	if fe := out.Entry; fe != nil {
		out.Open = live.ServiceOpen(fe.ServiceID)
		if fe.Pool.Algorithm() == table.LeastConn {
			for i := range fe.Pool.Endpoints() {
				endpoints = append(endpoints, fe.Pool.Endpoints()[i].ID)
			}
		}
	}
	s, err := live.Scratch(t.ranges, endpoints)
	if err != nil {
		return nil, err
	}
	live.Copy(s, key)
	if fe := cmp.Or(out.Entry, t.frontendOfAnswer(s, key)); fe != nil {
		live.CopyService(s, fe.ServiceID)
	}
	return s, nil
}

// frontendOfAnswer is the frontend of the connection that an answer belongs to, nil for none.
func (t *tracer) frontendOfAnswer(scratch *conntrack.Table, key *conntrack.Key) *table.FrontendEntry {
	ref := scratch.Worker(0).Lookup(scratch.Hash(key), key)
	if ref == 0 || ref.Forward() {
		return nil
	}
	k := table.DestinationKey(&scratch.Entry(ref.Other()).Key.W)
	return t.live.frontends.Load().Lookup(&k)
}

// worker returns the worker of the trace, and its ports' queues.
func (t *tracer) worker(scratch *conntrack.Table) (*Worker, []sink) {
	cfg := t.live.cfg
	cfg.ID, cfg.Ports, cfg.MaxPorts = 0, len(t.ports), len(t.ports)
	cfg.Flows, cfg.Frontends, cfg.Router = scratch, t.live.frontends, t.live.router
	cfg.Memory, cfg.Services, cfg.Attempts = t.memory, nil, cfg.Attempts.View()
	cfg.Affinity = affinity.New(1, [2]uint64{})
	w := New(cfg)
	w.dryRun = true
	w.takeoverUntil, w.removed.graceTicks = t.live.takeoverUntil, t.live.removed.graceTicks
	w.hostVeth, w.hostVethMACs = t.live.hostVeth, t.live.hostVethMACs
	w.links = make([]*link, 1)
	sinks := make([]sink, len(t.ports))
	for i, p := range t.ports {
		if p.Tag == 0 {
			p.Queue = &sinks[i]
		}
		w.ports[i].Port = p
	}
	for i := 1; i < t.memory.Frames(); i++ {
		w.AddFrame(t.memory.Addr(i))
	}
	return w, sinks
}

// copyAffinity lets the worker of the trace have the endpoint that the client used last.
func (t *tracer) copyAffinity(w *Worker, fe *table.FrontendEntry, key *conntrack.Key) {
	if fe == nil || fe.Pool.AffinitySeconds() == 0 {
		return
	}
	k, now, timeout := fe.AffinityKey(&key.W), w.conns.Tick()/secondTicks, uint32(fe.Pool.AffinitySeconds())
	n, ok := t.live.affinity.Get(k, now, timeout)
	if t.remembered = ok && fe.Pool.Find(n) != nil; ok {
		w.affinity.Put(k, n, now)
	} else {
		w.affinity.Put(k, n, now-timeout-1) // it came before
	}
}

// describe notes the connection of the packet: the present one, or that of before.
func (out *Traced) describe(w *Worker, key *conntrack.Key, before conntrack.Ref) {
	ref := w.conntrack.Lookup(w.conns.Hash(key), key)
	if ref == 0 {
		ref = before
	}
	if ref == 0 {
		return
	}
	if !ref.Forward() {
		ref = ref.Other()
	}
	e := w.conns.Entry(ref)
	k := e.Tuple()
	out.Client, out.Frontend, out.Endpoint = k.Src(), k.Dst(), w.conns.NewDst(ref)
	out.Mode, out.ServiceID = e.Mode, atomic.LoadUint32(&w.conns.Changing(ref).ServiceID)
	if e.Mode == conntrack.ModeNAT {
		out.SNAT = w.conns.NewSrc(ref)
	}
}

// begun returns the connection that the packet has begun, or was to begin; nil for none.
func (o *pendingConns) begun() *pendingConn {
	for i := range o.list {
		if o := &o.list[i]; o.fe != nil {
			return o
		}
	}
	return nil
}

// rangeOf returns the ports that the connection depends on.
func rangeOf(o *pendingConn) (p conntrack.Ports, ok bool) {
	f := &o.flow
	if !f.Endpoint.IsValid() || f.Mode.DSR() {
		return p, false
	}
	p = conntrack.Ports{Endpoint: f.Endpoint, SNAT: f.SNAT, Lo: f.PortLo, Hi: f.PortHi, Proto: f.Client.Proto()}
	if f.Mode == conntrack.ModeDNAT {
		client := f.Client.Src()
		p.SNAT, p.Lo, p.Hi = client.Addr(), client.Port(), client.Port()
	}
	return p, p.SNAT.IsValid() && p.Lo != 0
}

// note notes how the endpoint of a new connection was chosen, and the range of the ports.
func (out *Traced) note(w *Worker, o *pendingConn, key *conntrack.Key, t *tracer) {
	if o.ep == nil {
		return
	}
	out.Choice = t.choiceOf(w, o)
	if !out.Endpoint.IsValid() { // the packet has made no connection
		out.Client, out.Endpoint, out.Mode = o.flow.Client.Src(), o.fe.Target(o.ep, key.Dst().Port()), o.flow.Mode
	}
	if o.flow.Mode == conntrack.ModeNAT {
		out.PortLo, out.PortHi = o.flow.PortLo, o.flow.PortHi
	}
}

// follow notes the path of the packet, and the neighbor there.
func (out *Traced) follow(w *Worker, key *conntrack.Key, t *tracer) {
	var p header.Packet
	header.Parse(t.frame, len(t.frame), &p)
	as := route.Packet{
		Src: out.Client, Dst: out.Endpoint, Proto: key.Proto(), In: arrivalInterface(w.ports, int32(t.in), t.frame[:p.L3]),
	}
	if out.FromEndpoint {
		as.Src, as.Dst = out.Frontend, out.Client
	}
	if !as.Dst.IsValid() {
		return
	}
	out.Path, out.HasPath = w.routes.Lookup(&as, uint32(w.conns.Hash(key)))
	if !out.HasPath {
		return
	}
	if !out.FromEndpoint {
		out.Path.NextHop = throughHostVeth(&out.Path, out.Mode)
	}
	if n, ok := w.router.Adjacency(out.Path.Port, out.Path.NextHop); ok {
		var mac uint64
		mac, out.Neighbor = w.adjacencies[n].Dst()
		for i := range out.MAC {
			out.MAC[i] = byte(mac >> (8 * i))
		}
	}
}

// sink is a queue that receives a packet and keeps those that are sent.
type sink struct{ in, out []xsk.Desc }

func (s *sink) Receive(out []xsk.Desc) int {
	n := copy(out, s.in)
	s.in = s.in[n:]
	return n
}

func (s *sink) Pending() int            { return len(s.in) }
func (s *sink) Fill(addrs []uint64) int { return len(addrs) }

func (s *sink) Transmit(descs []xsk.Desc) int {
	s.out = append(s.out, descs...)
	return len(descs)
}

func (s *sink) Kick() error           { return nil }
func (s *sink) Complete([]uint64) int { return 0 }
