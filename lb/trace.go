package lb

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/header"
	"github.com/weirlb/weir/lb/pcapfilter"
	"github.com/weirlb/weir/lb/ports"
	"github.com/weirlb/weir/lb/route"
	"github.com/weirlb/weir/lb/steer"
	"github.com/weirlb/weir/lb/table"
	"github.com/weirlb/weir/lb/tap"
	"github.com/weirlb/weir/lb/worker"
)

// TraceQuery describes a packet to trace.
type TraceQuery struct {
	Proto               uint8
	Source, Destination netip.AddrPort
	Interface           string // by which it comes; "": by that of the route back to the source
	Flags               uint8  // of TCP; 0: SYN, or ACK where the tuple has a connection
	TTL                 uint8
	Payload             int // bytes behind the header of TCP or UDP
	DontFragment        bool
	// Frame is the packet as an Ethernet frame, in place of the fields above but Interface;
	// nil: they describe it.
	Frame []byte
}

// Trace is what would become of a packet.
type Trace struct {
	worker.Traced
	Interface string // by which it came
	Size      int    // of the received frame
	// Proto, the addresses and the ports are those of the packet; of TCP Flags, too.
	Proto, Flags        uint8
	Source, Destination netip.AddrPort
	// Steering is the verdict of the steering program, unless SteeringErr is not nil. Only a
	// packet that is redirected comes to a worker: for any other the outcome is what a worker
	// would have done.
	Steering    steer.Verdict
	SteeringErr error
	// DenyList is the list that has the source, "" if none denies the packet.
	DenyList string
	// Translated is true where the destination is an SNAT address and port.
	Translated bool
}

// ErrTrace means that the packet of a query cannot exist here.
var ErrTrace = errors.New("no such packet")

// Trace tells what the node would do with a packet now. Nothing is sent, and nothing that
// packets are forwarded by changes.
func (l *LB) Trace(q TraceQuery) (*Trace, error) {
	if q.Frame != nil {
		var f pcapfilter.Packet
		if pcapfilter.Read(q.Frame, len(q.Frame), &f); f.Family == 0 {
			return nil, fmt.Errorf("%w: it must be an Ethernet frame with an IP packet", ErrTrace)
		}
		q.Proto, q.Flags = f.Proto, f.Flags
		q.Source, q.Destination = netip.AddrPortFrom(f.Src, f.SrcPort), netip.AddrPortFrom(f.Dst, f.DstPort)
	}
	key := conntrack.MakeKey(q.Source, q.Destination, q.Proto)
	if q.Frame == nil && q.Proto == header.ProtoTCP && q.Flags == 0 {
		if q.Flags = header.SYN; l.flows.Has(&key) {
			q.Flags = header.ACK
		}
	}
	name, in, list, err := l.arrival(&q)
	if err != nil {
		return nil, err
	}
	frame := q.Frame
	if frame == nil {
		frame = q.build(in)
	}
	out := &Trace{
		Interface: name, Size: len(frame), Proto: q.Proto, Flags: q.Flags, Source: q.Source, Destination: q.Destination,
	}
	out.Steering, out.SteeringErr = l.steer.Classify(in.Index, frame)
	destination := table.DestinationKey(&key.W)
	out.Translated, _ = l.node.Load().Owns(&destination)
	traced, err := l.workers.list[0].Trace(in.Port, frame, list)
	if err != nil {
		return nil, err
	}
	out.Traced = *traced
	if out.HasReason && out.Reason == worker.DropDenied {
		out.DenyList = l.denials.lists[out.Denied].Name
	}
	return out, nil
}

// arrival returns by which interface the packet comes, how, and all ports.
func (l *LB) arrival(q *TraceQuery) (name string, in *ports.Arrival, list []worker.Port, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	id := -1
	if q.Interface != "" {
		if id = l.ports.Named(q.Interface); id < 0 {
			return "", nil, nil, fmt.Errorf("%w: interface %s is not attached", ErrTrace, q.Interface)
		}
	} else if id = l.portBack(q); id < 0 {
		return "", nil, nil, fmt.Errorf("%w: no route leads back to %s by an attached interface: name the interface", ErrTrace, q.Source.Addr())
	}
	a, ok := l.ports.Arrival(id)
	if !ok {
		return "", nil, nil, fmt.Errorf("%w: interface %s is not attached", ErrTrace, l.ports.Name(id))
	}
	for port := range l.ports.Len() {
		list = append(list, l.workers.portFor(0, port))
	}
	return l.ports.Name(id), &a, list, nil
}

// portBack is the port by which answers to a packet leave, and packets of the source come as a rule, -1 for
// none.
func (l *LB) portBack(q *TraceQuery) int {
	answer := route.Packet{Src: q.Destination, Dst: q.Source, Proto: q.Proto}
	if path, ok := l.router.Load().Lookup(&answer, 0); ok && (path.Kind == route.Attached || path.Kind == route.Host) {
		return path.Port
	}
	return -1
}

// Tap attaches a tap to all workers. cfg.Workers is set here. The caller calls release when it
// reads no more. While there is any tap, the packets of all flows take the packet loop: the
// flow cache is suspended.
func (l *LB) Tap(cfg tap.Config) (t *tap.Tap, release func(), err error) { return l.taps.add(cfg) }
