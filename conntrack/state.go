package conntrack

import (
	"fmt"
	"time"
)

// State is where a connection stands. The TCP states are those of the kernel's
// nf_conntrack, as a middle box sees them.
type State uint8

// States.
const (
	StateNone             State = iota // not a connection, or deleted
	StateSynSent                       // SYN seen from the client
	StateSynRecv                       // SYN-ACK seen from the endpoint
	StateEstablished                   // ACK seen from the client
	StateFinWait                       // FIN seen from either side
	StateCloseWait                     // and acknowledged by the other
	StateLastAck                       // FIN seen from both sides
	StateTimeWait                      // and both acknowledged
	StateClose                         // RST seen
	StateUnreplied                     // UDP: packets from the client only
	StateReplied                       // UDP: and an answer
	StateStream                        // UDP: and still going after two seconds
	StateSCTPInit                      // SCTP: INIT seen from the client, perhaps the INIT ACK
	StateSCTPCookieEchoed              // COOKIE ECHO seen from the client
	StateSCTPEstablished               // COOKIE ACK seen from the endpoint
	StateSCTPShutdown                  // SHUTDOWN or SHUTDOWN ACK seen; ends in StateClose, as does an ABORT
	numStates
)

var stateNames = [numStates]string{
	"none", "syn-sent", "syn-recv", "established", "fin-wait", "close-wait",
	"last-ack", "time-wait", "close", "unreplied", "replied", "stream",
	"sctp-init", "sctp-cookie-echoed", "sctp-established", "sctp-shutdown",
}

// String returns the name that listings and metrics use.
func (s State) String() string {
	if s < numStates {
		return stateNames[s]
	}
	return fmt.Sprintf("state(%d)", uint8(s))
}

// Bits of Conn.state beside the State.
const (
	stateMask     = 0xf
	slow          = 1 << 4 // established, but every packet is to be looked at: see watched
	finClient     = 1 << 5 // FIN seen from the client, with the number before Conn.clientNext
	finEndpoint   = 1 << 6
	ackedClient   = 1 << 7 // the client's FIN was acknowledged
	ackedEndpoint = 1 << 8
	endpointFirst = 1 << 9  // the endpoint closed first or at the same time: it will hold TIME_WAIT
	clientKnown   = 1 << 10 // Conn.clientNext is valid
	endpointKnown = 1 << 11 // Conn.endpointNext is valid
	tsKnown       = 1 << 12 // Conn.extra is the client's last timestamp
	synNoted      = 1 << 13 // Conn.extra is the number after a second SYN of the client
	synAckNoted   = 1 << 14 // Conn.extra is the number after a SYN-ACK, not of the known connection
	young         = 1 << 15 // established a moment ago: the numbers are still followed
	doubted       = 1 << 16 // it may be over: a RST or FIN was seen that was not quite right
	unconfirmed   = 1 << 17 // restored, or silent after a RST or FIN in doubt, and neither side was heard since
	clientOnly    = 1 << 18 // DSR: the endpoint's packets do not pass here
	superseded    = 1 << 19 // the client has begun anew: the reverse entry alone is known
	heard         = 3 << 28 // UDP: how often ageing has heard both sides, see hear
	changing      = 1 << 30 // a worker changes the numbers, see Conn.claim
	published     = 1 << 31 // both entries are live; set last, cleared first

	// sinceShift is where the lowest 8 bits of the tick of the last FIN or RST are. Of UDP
	// they count what SetIDs does; SetIDs is at work while renumbered is set.
	sinceShift = 20
	sinceMask  = 0xff << sinceShift
	renumbered = 1 << sinceShift

	finBits = finClient | finEndpoint
	// aborted is, in StateClose, that neither side knows of the end: see Table.Abort. No other
	// way to that state keeps the bit.
	aborted = young
	// lasting are the bits that a connection keeps when it begins anew in place.
	lasting = clientOnly | superseded | published
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

// maxTimeout keeps differences of ticks within 31 bits.
const maxTimeout = 365 * 24 * time.Hour

// ticks returns the timeouts per state in ticks, rounded up.
func (t Timeouts) ticks() ([numStates]uint32, error) {
	d := DefaultTimeouts()
	var out [numStates]uint32
	for _, f := range []struct {
		state    State
		name     string
		set, def time.Duration
	}{
		{StateSynSent, "SynSent", t.SynSent, d.SynSent},
		{StateSynRecv, "SynRecv", t.SynRecv, d.SynRecv},
		{StateEstablished, "Established", t.Established, d.Established},
		{StateFinWait, "FinWait", t.FinWait, d.FinWait},
		{StateCloseWait, "CloseWait", t.CloseWait, d.CloseWait},
		{StateLastAck, "LastAck", t.LastAck, d.LastAck},
		{StateTimeWait, "TimeWait", t.TimeWait, d.TimeWait},
		{StateClose, "Close", t.Close, d.Close},
		{StateUnreplied, "UDPUnreplied", t.UDPUnreplied, d.UDPUnreplied},
		{StateReplied, "UDPReplied", t.UDPReplied, d.UDPReplied},
		{StateStream, "UDPStream", t.UDPStream, d.UDPStream},
		{StateSCTPInit, "SCTPHandshake", t.SCTPHandshake, d.SCTPHandshake},
		{StateSCTPCookieEchoed, "SCTPHandshake", t.SCTPHandshake, d.SCTPHandshake},
		{StateSCTPEstablished, "SCTPEstablished", t.SCTPEstablished, d.SCTPEstablished},
		{StateSCTPShutdown, "SCTPShutdown", t.SCTPShutdown, d.SCTPShutdown},
	} {
		v := f.set
		if v == 0 {
			v = f.def
		}
		if v < 0 || v > maxTimeout {
			return out, fmt.Errorf("timeout %s %v: want between 0 and %v", f.name, v, maxTimeout)
		}
		const tick = time.Second / TicksPerSecond
		out[f.state] = uint32((v + tick - 1) / tick)
	}
	return out, nil
}
