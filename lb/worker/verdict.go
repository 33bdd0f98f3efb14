package worker

import "github.com/weirlb/weir/lb/header"

// verdict is the outcome of a packet. The functions of the slow path return it and leave it
// to act to drop, punt or answer the packet: a caller goes on after pass alone, and returns
// any other verdict. Bits 0..7 are the kind, 8..15 the reason, 16..23 an ICMP error and
// 32..63 an argument.
type verdict uint64

// Kinds of verdict. The first ones are verdicts by themselves.
const (
	pass    verdict = iota // no outcome yet: the packet goes on
	sent                   // to the next hop or, by a hand-off ring, to the worker of the port
	queued                 // until a neighbor or a fragment comes
	pending                // until the connection is made: createPending concludes it
	again                  // to be looked up again: the flow ended, or the key was not known

	// reply: the packet has become an answer, which goes back by the ingress port.
	reply

	kindDrop
	kindPunt
	kindReject
	kindICMP
	kindChallenge
)

// drop is the verdict to drop a packet, for a reason.
func drop(reason Drop) verdict { return kindDrop | verdict(reason)<<8 }

// punt is the verdict to pass a packet to the kernel. A packet that cannot go there, because
// it comes from there, is dropped for the reason.
func punt(reason Drop) verdict { return kindPunt | verdict(reason)<<8 }

// reject is the verdict to answer a packet, TCP with a RST and SCTP with an ABORT, and to
// count it under the reason.
func reject(reason Drop) verdict { return kindReject | verdict(reason)<<8 }

// rejectICMP is the verdict to answer a packet with an ICMP error, and to count it under the
// reason. Only header.TooBig has an MTU.
func rejectICMP(e header.Error, mtu uint32, reason Drop) verdict {
	return kindICMP | verdict(reason)<<8 | verdict(e)<<16 | verdict(mtu)<<32
}

// challenge is the verdict to answer a SYN with a challenge ACK, for a flow whose last
// packet came at tick seen.
func challenge(seen uint32, reason Drop) verdict {
	return kindChallenge | verdict(reason)<<8 | verdict(seen)<<32
}

func (v verdict) kind() verdict      { return v & 0xff }
func (v verdict) reason() Drop       { return Drop(v >> 8) }
func (v verdict) icmp() header.Error { return header.Error(v >> 16) }
func (v verdict) argument() uint32   { return uint32(v >> 32) }
