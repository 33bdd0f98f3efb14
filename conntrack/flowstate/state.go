// Package flowstate describes a connection's state word: the [State] of its protocol, and bits that
// the packages tcp, udp and sctp beside this one set. Each question of the flow table about a
// connection is a predicate over that word: whether it counts, ends, makes room, or leaves its port.
package flowstate

import (
	"fmt"
	"time"
)

// TicksPerSecond is the rate of the coarse clock of ages and timeouts.
const TicksPerSecond = 16

// State is where a connection stands. The TCP states are those of the kernel's
// nf_conntrack, as a middle box sees them.
type State uint8

// States.
const (
	None             State = iota // not a connection, or deleted
	SynSent                       // SYN seen from the client
	SynRecv                       // SYN-ACK seen from the endpoint
	Established                   // ACK seen from the client
	FinWait                       // FIN seen from either side
	CloseWait                     // and acknowledged by the other
	LastAck                       // FIN seen from both sides
	TimeWait                      // and both acknowledged
	Close                         // RST seen
	Unreplied                     // UDP: packets from the client only
	Replied                       // UDP: and an answer
	Stream                        // UDP: and still going after two seconds
	SCTPInit                      // SCTP: INIT seen from the client, perhaps the INIT ACK
	SCTPCookieEchoed              // COOKIE ECHO seen from the client
	SCTPEstablished               // COOKIE ACK seen from the endpoint
	SCTPShutdown                  // SHUTDOWN or SHUTDOWN ACK seen; ends in Close, as does an ABORT
	// Count is the number of States.
	Count
)

// Names are the names of the States.
var Names = [Count]string{
	"none", "syn-sent", "syn-recv", "established", "fin-wait", "close-wait",
	"last-ack", "time-wait", "close", "unreplied", "replied", "stream",
	"sctp-init", "sctp-cookie-echoed", "sctp-established", "sctp-shutdown",
}

// String returns the name that listings and metrics use.
func (s State) String() string {
	if s < Count {
		return Names[s]
	}
	return fmt.Sprintf("state(%d)", uint8(s))
}

// Of returns the State of a state word.
func Of(word uint32) State { return State(word & Mask) }

// Bits of a state word beside the State. Numbers are those of the connection: see tcp.Numbers.
const (
	Mask          = 0xf
	Slow          = 1 << 4 // established, but every packet is to be looked at: see Watched
	FinClient     = 1 << 5 // FIN seen from the client, with the number before the next of the client
	FinEndpoint   = 1 << 6
	AckedClient   = 1 << 7 // the client's FIN was acknowledged
	AckedEndpoint = 1 << 8
	EndpointFirst = 1 << 9  // the endpoint closed first or at the same time: it will hold TIME_WAIT
	ClientKnown   = 1 << 10 // the next number of the client is valid
	EndpointKnown = 1 << 11 // the next number of the endpoint is valid
	TsKnown       = 1 << 12 // the extra number is the client's last timestamp
	SynNoted      = 1 << 13 // the extra number is the number after a second SYN of the client
	SynAckNoted   = 1 << 14 // the extra number is the number after a SYN-ACK, not of the known connection
	Young         = 1 << 15 // established a moment ago: the numbers are still followed
	Doubted       = 1 << 16 // it may be over: a RST or FIN was seen that was not quite right
	Unconfirmed   = 1 << 17 // restored, or silent after a RST or FIN in doubt, and neither side was heard since
	ClientOnly    = 1 << 18 // DSR: the endpoint's packets do not pass here
	Superseded    = 1 << 19 // the client has begun anew: the reverse entry alone is known
	Heard         = 3 << 28 // UDP: how often ageing has heard both sides, see udp.Hear
	Changing      = 1 << 30 // a worker changes the numbers, see Conn.claim
	Published     = 1 << 31 // both entries are live; set last, cleared first

	// SinceShift is where the lowest 8 bits of the tick of the last FIN or RST are. Of UDP
	// they count what SetIDs does; SetIDs is at work while Renumbered is set.
	SinceShift = 20
	SinceMask  = 0xff << SinceShift
	Renumbered = 1 << SinceShift

	FinBits = FinClient | FinEndpoint
	// Aborted is, in Close, that neither side knows of the end: see Table.Abort. No other
	// way to that state keeps the bit.
	Aborted = Young
	// Lasting are the bits that a connection keeps when it begins anew in place.
	Lasting = ClientOnly | Superseded | Published
)

// Timeouts says after how long without a packet a connection in each state is
// forgotten. A zero field takes the default.
type Timeouts struct {
	SynSent      time.Duration // 120 s
	SynRecv      time.Duration // 60 s
	Established  time.Duration // 24 h, as kube-proxy sets it
	FinWait      time.Duration // 120 s
	CloseWait    time.Duration // 1 h, as kube-proxy sets it
	LastAck      time.Duration // 30 s
	TimeWait     time.Duration // 120 s
	Close        time.Duration // 10 s
	UDPUnreplied time.Duration // 30 s
	UDPReplied   time.Duration // 30 s
	UDPStream    time.Duration // 120 s

	SCTPHandshake   time.Duration // 3 s
	SCTPEstablished time.Duration // 210 s: seven heartbeats
	SCTPShutdown    time.Duration // 3 s
}

// DefaultTimeouts are the kernel's nf_conntrack timeouts, with kube-proxy's for
// established and half-closed TCP.
func DefaultTimeouts() Timeouts {
	return Timeouts{
		SynSent:      120 * time.Second,
		SynRecv:      60 * time.Second,
		Established:  24 * time.Hour,
		FinWait:      120 * time.Second,
		CloseWait:    time.Hour,
		LastAck:      30 * time.Second,
		TimeWait:     120 * time.Second,
		Close:        10 * time.Second,
		UDPUnreplied: 30 * time.Second,
		UDPReplied:   30 * time.Second,
		UDPStream:    120 * time.Second,

		SCTPHandshake:   3 * time.Second,
		SCTPEstablished: 210 * time.Second,
		SCTPShutdown:    3 * time.Second,
	}
}

// MaxTimeout keeps differences of ticks within 31 bits.
const MaxTimeout = 365 * 24 * time.Hour

// Ticks returns the timeouts per state in ticks, rounded up.
func (t Timeouts) Ticks() ([Count]uint32, error) {
	d := DefaultTimeouts()
	var out [Count]uint32
	for _, f := range []struct {
		state    State
		name     string
		set, def time.Duration
	}{
		{SynSent, "SynSent", t.SynSent, d.SynSent},
		{SynRecv, "SynRecv", t.SynRecv, d.SynRecv},
		{Established, "Established", t.Established, d.Established},
		{FinWait, "FinWait", t.FinWait, d.FinWait},
		{CloseWait, "CloseWait", t.CloseWait, d.CloseWait},
		{LastAck, "LastAck", t.LastAck, d.LastAck},
		{TimeWait, "TimeWait", t.TimeWait, d.TimeWait},
		{Close, "Close", t.Close, d.Close},
		{Unreplied, "UDPUnreplied", t.UDPUnreplied, d.UDPUnreplied},
		{Replied, "UDPReplied", t.UDPReplied, d.UDPReplied},
		{Stream, "UDPStream", t.UDPStream, d.UDPStream},
		{SCTPInit, "SCTPHandshake", t.SCTPHandshake, d.SCTPHandshake},
		{SCTPCookieEchoed, "SCTPHandshake", t.SCTPHandshake, d.SCTPHandshake},
		{SCTPEstablished, "SCTPEstablished", t.SCTPEstablished, d.SCTPEstablished},
		{SCTPShutdown, "SCTPShutdown", t.SCTPShutdown, d.SCTPShutdown},
	} {
		v := f.set
		if v == 0 {
			v = f.def
		}
		if v < 0 || v > MaxTimeout {
			return out, fmt.Errorf("timeout %s %v: want between 0 and %v", f.name, v, MaxTimeout)
		}
		const tick = time.Second / TicksPerSecond
		out[f.state] = uint32((v + tick - 1) / tick)
	}
	return out, nil
}
