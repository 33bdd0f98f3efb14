// Package sctp follows SCTP associations: [Next] changes a state word by a packet.
package sctp

import "github.com/weirlb/weir/conntrack/flowstate"

// Chunk types (RFC 9260, section 3.2) that move an association. Each is a bit
// of [Packet.Chunks].
const (
	Init             = 1 << 1
	Abort            = 1 << 6
	Shutdown         = 1 << 7
	ShutdownAck      = 1 << 8
	CookieEcho       = 1 << 10
	CookieAck        = 1 << 11
	ShutdownComplete = 1 << 14
)

// Packet has the fields of an SCTP packet that determine the state of the association.
type Packet struct {
	Tag         uint32 // verification tag
	InitiateTag uint32 // of an INIT
	Chunks      uint16 // 1<<type of every chunk of a type below 16
	Reflected   bool   // ABORT or SHUTDOWN COMPLETE with the T bit
}

// Has reports whether the packet has a chunk of chunks.
func (g *Packet) Has(chunks uint16) bool { return g.Chunks&chunks != 0 }

// Tags are the verification tags of an association: the client's, which the endpoint's
// packets carry, and the endpoint's.
type Tags struct{ Client, Endpoint uint32 }

// Next returns the state word after packet g in state word s, and changes the tags. The
// states are those of nf_conntrack_proto_sctp, the two of each step of the handshake and of the
// shutdown taken together.
//
// Only the endpoint knows whether a cookie is good: the COOKIE ACK makes the association.
// The tags are not learned anew afterwards. So no sender that does not see the endpoint's
// packets can end the association here. An association that the client restarts has other
// tags: the end is not noticed, and the association goes by its timeout.
func Next(s uint32, tags *Tags, forward bool, g *Packet) uint32 {
	to := func(state flowstate.State) uint32 { return s&^flowstate.Mask | uint32(state) }
	beginning := flowstate.Of(s) < flowstate.SCTPEstablished
	switch {
	case g.Has(Abort | ShutdownComplete):
		if tags.verify(s, forward, g) {
			return to(flowstate.Close)
		}
	case forward && beginning && g.Has(Init):
		tags.Client = g.InitiateTag
		return to(flowstate.SCTPInit) | flowstate.ClientKnown
	case forward && beginning && g.Has(CookieEcho):
		tags.Endpoint = g.Tag
		return to(flowstate.SCTPCookieEchoed) | flowstate.TsKnown
	case !forward && beginning && g.Has(CookieAck):
		tags.Client = g.Tag
		return to(flowstate.SCTPEstablished) | flowstate.ClientKnown
	case forward && beginning && s&flowstate.ClientOnly != 0:
		// The COOKIE ACK does not pass here: that the client goes on has to do.
		tags.Endpoint = g.Tag
		return to(flowstate.SCTPEstablished) | flowstate.TsKnown
	case !beginning && g.Has(Shutdown|ShutdownAck):
		if tags.verify(s, forward, g) {
			return to(flowstate.SCTPShutdown)
		}
	}
	return s
}

// verify reports whether the packet has the tag that the receiver expects (RFC 9260,
// section 8.5): the receiver's tag, or the sender's tag with the T bit.
func (t *Tags) verify(s uint32, forward bool, g *Packet) bool {
	if forward == g.Reflected {
		return s&flowstate.ClientKnown != 0 && g.Tag == t.Client
	}
	return s&flowstate.TsKnown != 0 && g.Tag == t.Endpoint
}
