package flowlog

import (
	"net/netip"
	"time"

	"github.com/weirlb/weir/cmd/weir/translate"
	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/conntrack/flowstate"
	"github.com/weirlb/weir/lb/header"
)

// Values of Event.Event.
const (
	Start = "start"
	End   = "end"
)

// Event is the beginning or the end of a connection: a line of the file.
type Event struct {
	Event string `json:"event"`
	// Start is the time of the first packet, End that of the last, both to 1/16 s.
	Start time.Time `json:"start"`
	End   time.Time `json:"end,omitzero"`

	Protocol string         `json:"protocol"`
	Client   netip.AddrPort `json:"client"`
	Frontend netip.AddrPort `json:"frontend"`
	// SNAT is the source that the endpoint sees, absent where that is the client.
	SNAT     netip.AddrPort `json:"snat,omitzero"`
	Endpoint netip.AddrPort `json:"endpoint"`
	Service  string         `json:"service"` // namespace/name, "" if it is not known
	Zone     string         `json:"zone"`    // of the endpoint
	Mode     string         `json:"mode"`

	// Reason is why the connection ended, and State the last state.
	Reason Reason `json:"reason,omitempty"`
	State  string `json:"state,omitempty"`
	*Counts

	proto uint8
}

// Counts are the packets that arrived, and their bytes from the IP header on.
type Counts struct {
	ClientPackets   uint64 `json:"clientPackets"`
	ClientBytes     uint64 `json:"clientBytes"`
	EndpointPackets uint64 `json:"endpointPackets"`
	EndpointBytes   uint64 `json:"endpointBytes"`
}

// eventOf is the event of record r. at returns the time of a tick.
func eventOf(r *conntrack.Record, at func(tick uint32) time.Time, n *names) Event {
	proto := r.Client.Proto()
	e := Event{
		Event: Start, Start: at(r.Created),
		Protocol: header.ProtocolName(proto), proto: proto,
		Client: r.Client.Src(), Frontend: r.Client.Dst(), Endpoint: r.Endpoint.Dst(),
		Service: n.service(r.ServiceID), Mode: translate.ModeName(r.Mode),
	}
	e.Zone = n.zone(e.Service, e.Endpoint.Addr())
	if r.Mode == conntrack.ModeNAT {
		e.SNAT = r.Endpoint.Src()
	}
	if r.Cause == conntrack.CauseNone {
		return e
	}
	e.Event, e.End = End, at(r.LastSeen)
	if e.End.Before(e.Start) { // the kernel is a tick behind
		e.End = e.Start
	}
	e.Reason, e.State = reasonOf(r), flowstate.Of(r.Word).String()
	c := &r.Counts
	e.Counts = &Counts{c[0].Packets, c[0].Bytes, c[1].Packets, c[1].Bytes}
	return e
}

// Reason is why a connection ended.
type Reason string

// Reasons.
const (
	Closed    Reason = "closed"     // by both sides
	Reset     Reason = "reset"      // by a RST
	Refused   Reason = "refused"    // by the endpoint
	Ended     Reason = "ended"      // by Weir: weir connections kill, or the endpoint is gone
	Removed   Reason = "removed"    // as Ended, without a word to either side; or tried at another endpoint
	Idle      Reason = "idle"       // silent
	NoAnswer  Reason = "no-answer"  // the endpoint was not heard
	HalfOpen  Reason = "half-open"  // the client did not complete the handshake
	Evicted   Reason = "evicted"    // the flow table was full
	PortTaken Reason = "port-taken" // SNAT ports were short
)

// reasonOf is the reason of the end r. What both sides have ended counts as that, also where the
// entry made room early.
func reasonOf(r *conntrack.Record) Reason {
	s, state := r.Word, flowstate.Of(r.Word)
	clientOnly := s&flowstate.ClientOnly != 0
	switch {
	case flowstate.IsAborted(s):
		return Ended
	case state == flowstate.Close && r.Client.Proto() == header.ProtoSCTP:
		return Closed
	case state == flowstate.Close && !clientOnly && !flowstate.MayRevive(s):
		return Refused
	case state == flowstate.Close:
		return Reset
	case flowstate.Ended(s):
		return Closed
	}
	switch r.Cause {
	case conntrack.CauseEvicted:
		return Evicted
	case conntrack.CausePort:
		return PortTaken
	case conntrack.CauseDeleted:
		return Removed
	}
	switch state {
	case flowstate.SynSent, flowstate.SCTPInit:
		if !clientOnly {
			return NoAnswer
		}
		return HalfOpen
	case flowstate.SynRecv, flowstate.SCTPCookieEchoed:
		return HalfOpen
	case flowstate.Unreplied:
		if !clientOnly {
			return NoAnswer
		}
	}
	return Idle
}
