package api

import (
	"context"
	"encoding/hex"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// TraceQuery is a packet to trace.
type TraceQuery struct {
	Protocol            string // TCP, UDP or SCTP
	Source, Destination netip.AddrPort
	Interface           string // by which it comes; "": by that of the route back to the source
	Flags               string // of TCP, of TraceFlags; "": syn, or ack where a connection exists
	TTL                 int
	Payload             int // bytes behind the header of TCP or UDP
	DontFragment        bool
	// Frame is the packet as an Ethernet frame without the check sequence, in place of all
	// fields but Interface.
	Frame []byte
}

// Bounds of a packet to trace.
const (
	DefaultTraceTTL = 64
	MaxTracePayload = 9000
	maxTraceFrame   = 16384
)

// TraceFlags are the names of the flags of TCP in a TraceQuery, separated by commas.
var TraceFlags = []string{"fin", "syn", "rst", "psh", "ack"}

// Trace is what the node would do with a packet now. Nothing was sent, and nothing that
// packets are forwarded by has changed.
type Trace struct {
	Protocol    string `json:"protocol"`
	Source      string `json:"source"`
	Destination string `json:"destination"`
	Flags       string `json:"flags,omitempty"` // of TCP
	Interface   string `json:"interface"`
	Size        int    `json:"size"` // of the received frame in bytes
	// Steering is what the steering program says: redirected to Weir, or why the kernel gets
	// the packet. It is empty where the program could not be asked, as SteeringError says.
	Steering      string `json:"steering,omitempty"`
	SteeringError string `json:"steeringError,omitempty"`
	// Verdict is kernel (the packet is not Weir's), forward, punt (to the kernel), reply,
	// challenge, drop or queue (until a neighbor answers, or the first fragment comes).
	Verdict string `json:"verdict"`
	// Reason is a drop reason, of a drop or of a refusal, and Text explains it.
	Reason string `json:"reason,omitempty"`
	Text   string `json:"text,omitempty"`
	// DenyList is the deny list that has the source, for the reason denied.
	DenyList string `json:"denyList,omitempty"`
	// Connection is the connection of the packet: that which exists, or else the new one.
	Connection *TracedConnection `json:"connection,omitempty"`
	// Frontend is that to which the packet goes; absent where it goes to none.
	Frontend *TracedFrontend `json:"frontend,omitempty"`
	// Choice is the endpoint of a new connection; absent without one.
	Choice *TracedChoice `json:"choice,omitempty"`
	// NextHop is to which the packet goes, as far as it gets there.
	NextHop *TracedHop `json:"nextHop,omitempty"`
	// Sent is the packet as it leaves, or the answer to it.
	Sent *TracedPacket `json:"sent,omitempty"`
}

// TracedConnection is the connection of a traced packet.
type TracedConnection struct {
	Existing bool `json:"existing"`
	// From is client or endpoint: who sends the packet.
	From     string `json:"from"`
	State    string `json:"state,omitempty"` // of an existing connection, before the packet
	Service  string `json:"service,omitempty"`
	Client   string `json:"client"`
	Frontend string `json:"frontend"`
	Endpoint string `json:"endpoint"`
	Mode     string `json:"mode"`
	SNAT     string `json:"snat,omitempty"`
	// SNATPorts is the range of which a new connection takes a port.
	SNATPorts string `json:"snatPorts,omitempty"`
}

// TracedFrontend is the frontend of a traced packet, with the limits of its Service.
type TracedFrontend struct {
	Address                 string `json:"address"` // address:port
	Service                 string `json:"service"`
	Kind                    string `json:"kind"`
	Tier                    string `json:"tier,omitempty"` // in use; terminating: no other endpoint is left
	Endpoints               int    `json:"endpoints"`      // that get new connections
	Open                    uint32 `json:"open"`           // connections of the Service
	MaxConnections          uint32 `json:"maxConnections,omitempty"`
	NewConnectionsPerSecond uint32 `json:"newConnectionsPerSecond,omitempty"`
}

// TracedChoice is how the endpoint of a new connection is chosen.
type TracedChoice struct {
	Rule            string           `json:"rule"`
	Algorithm       string           `json:"algorithm"`
	AffinitySeconds int              `json:"affinitySeconds,omitempty"`
	Hash            string           `json:"hash"` // of the tuple, the same on every node
	Endpoint        string           `json:"endpoint"`
	Candidates      []TracedEndpoint `json:"candidates"` // at most 100
	LeftOut         int              `json:"leftOut,omitempty"`
}

// TracedEndpoint is an endpoint that a new connection may get.
type TracedEndpoint struct {
	Address string `json:"address"` // address:port
	Weight  uint32 `json:"weight"`
	Local   bool   `json:"local,omitempty"` // on this node
	Open    uint32 `json:"open"`            // connections of this node
}

// TracedHop is the next hop of a traced packet.
type TracedHop struct {
	Interface string `json:"interface"`
	Address   string `json:"address"`
	Neighbor  string `json:"neighbor"` // valid, unresolved, resolving or failed
	MAC       string `json:"mac,omitempty"`
	MTU       uint32 `json:"mtu"`
	ByHost    bool   `json:"byHost,omitempty"` // through the kernel, by the host veth
}

// TracedPacket is the packet that leaves.
type TracedPacket struct {
	Interface   string `json:"interface"`
	Protocol    string `json:"protocol"`
	Source      string `json:"source"`
	Destination string `json:"destination"`
	Size        int    `json:"size"` // of the frame, or of the first fragment
	TTL         int    `json:"ttl"`
	Fragments   int    `json:"fragments,omitempty"` // more than one
	// Answer names an answer, such as TCP RST or ICMP type 3 code 1.
	Answer string `json:"answer,omitempty"`
}

// TraceSource traces packets.
type TraceSource interface {
	Trace(ctx context.Context, q *TraceQuery) (*Trace, error)
}

// traceRoutes are those that trace a packet.
func traceRoutes(src Source, wait time.Duration) []route {
	// A trace copies the connections of a range of SNAT ports, which may be tens of megabytes.
	tracing := newPlaces("a trace", 1, wait)
	return []route{{
		method: "GET", path: "/v1/trace", summary: "What the node would do with a packet now; nothing is sent.", answer: Trace{},
		params: []param{
			{name: "protocol", usage: "TCP, UDP or SCTP; required without a frame", enum: []string{"TCP", "UDP", "SCTP"}},
			{name: "source", usage: "address:port; required without a frame"},
			{name: "destination", usage: "address:port; required without a frame"},
			{name: "frame", usage: "the packet as an Ethernet frame, in hexadecimal digits; of the other parameters only interface is allowed then"},
			{name: "interface", usage: "by which it comes; absent: that of the route back to the source"},
			{name: "flags", usage: "of TCP, such as syn,ack; absent: syn, or ack where a connection exists"},
			{name: "ttl", kind: "integer", usage: fmt.Sprintf("absent: %d", DefaultTraceTTL)},
			{name: "payload", kind: "integer", usage: fmt.Sprintf("bytes behind the header of TCP or UDP, at most %d", MaxTracePayload)},
			{name: "dontFragment", kind: "boolean", usage: "the DF bit of IPv4"},
		},
		handle: func(w http.ResponseWriter, r *http.Request) {
			q, err := traceQuery(r)
			if err == nil {
				err = q.Check()
			}
			if err != nil {
				refuse(w, http.StatusBadRequest, err)
				return
			}
			leave := tracing.admit(w, r)
			if leave == nil {
				return
			}
			defer leave()
			t, err := src.Trace(r.Context(), q)
			reply(w, t, err)
		},
	}}
}

func traceQuery(r *http.Request) (q *TraceQuery, err error) {
	if s := r.FormValue("frame"); s != "" {
		for name := range r.Form {
			if name != "frame" && name != "interface" {
				return nil, fmt.Errorf("%s: not with a frame", name)
			}
		}
		q = &TraceQuery{Interface: r.FormValue("interface")}
		if q.Frame, err = hex.DecodeString(s); err != nil {
			return nil, fmt.Errorf("frame: %w", err)
		}
		return q, nil
	}
	q = &TraceQuery{
		Protocol: r.FormValue("protocol"), Interface: r.FormValue("interface"), Flags: r.FormValue("flags"),
	}
	for name, to := range map[string]*netip.AddrPort{"source": &q.Source, "destination": &q.Destination} {
		if *to, err = netip.ParseAddrPort(r.FormValue(name)); err != nil {
			return nil, fmt.Errorf("%s: must be ADDRESS:PORT, is %q", name, r.FormValue(name))
		}
	}
	if q.TTL, err = numberFrom0(r, "ttl", DefaultTraceTTL); err != nil {
		return nil, err
	}
	if q.Payload, err = numberFrom0(r, "payload", 0); err != nil {
		return nil, err
	}
	if s := r.FormValue("dontFragment"); s != "" {
		if q.DontFragment, err = strconv.ParseBool(s); err != nil {
			return nil, fmt.Errorf("dontFragment: must be true or false, is %q", s)
		}
	}
	return q, nil
}

// Check reports a packet that there cannot be.
func (q *TraceQuery) Check() error {
	if n := len(q.Frame); n > maxTraceFrame {
		return fmt.Errorf("frame: must have at most %d bytes, has %d", maxTraceFrame, n)
	} else if n > 0 {
		return nil
	}
	s, d := q.Source.Addr(), q.Destination.Addr()
	switch {
	case !slices.Contains([]string{"TCP", "UDP", "SCTP"}, q.Protocol):
		return fmt.Errorf("protocol: must be TCP, UDP or SCTP, is %q", q.Protocol)
	case !s.IsValid() || !d.IsValid():
		return fmt.Errorf("source and destination are required")
	case s.Is4In6() || d.Is4In6() || s.Zone() != "" || d.Zone() != "":
		return fmt.Errorf("source and destination must be addresses of IPv4 or IPv6 without a zone")
	case s.Is4() != d.Is4():
		return fmt.Errorf("source %s and destination %s are of different address families", s, d)
	case q.Source.Port() == 0 || q.Destination.Port() == 0:
		return fmt.Errorf("source and destination must have a port other than 0: a frame is traced with any")
	case q.TTL < 1 || q.TTL > 255:
		return fmt.Errorf("ttl: must be from 1 to 255, is %d", q.TTL)
	case q.Payload < 0 || q.Payload > MaxTracePayload:
		return fmt.Errorf("payload: must be from 0 to %d, is %d", MaxTracePayload, q.Payload)
	case q.Flags != "" && q.Protocol != "TCP":
		return fmt.Errorf("flags: only TCP has them")
	}
	_, err := q.FlagBits()
	return err
}

// FlagBits are the flags as the TCP header has them.
func (q *TraceQuery) FlagBits() (bits uint8, err error) {
	for _, name := range strings.FieldsFunc(q.Flags, func(r rune) bool { return r == ',' }) {
		at := slices.Index(TraceFlags, strings.ToLower(name))
		if at < 0 {
			return 0, fmt.Errorf("flags: must be of %s, is %q", strings.Join(TraceFlags, ","), name)
		}
		bits |= 1 << at
	}
	return bits, nil
}

// Trace asks what the node would do with a packet.
func (c *Client) Trace(ctx context.Context, q *TraceQuery) (*Trace, error) {
	v := url.Values{}
	if q.Frame != nil {
		v.Set("frame", hex.EncodeToString(q.Frame))
		set(v, "interface", q.Interface)
		return get[Trace](ctx, c.daemon, "/v1/trace", v)
	}
	set(v, "protocol", q.Protocol)
	set(v, "source", q.Source.String())
	set(v, "destination", q.Destination.String())
	set(v, "interface", q.Interface)
	set(v, "flags", q.Flags)
	v.Set("ttl", strconv.Itoa(q.TTL))
	v.Set("payload", strconv.Itoa(q.Payload))
	if q.DontFragment {
		v.Set("dontFragment", "true")
	}
	return get[Trace](ctx, c.daemon, "/v1/trace", v)
}
