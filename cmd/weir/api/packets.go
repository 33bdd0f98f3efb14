package api

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"
	"time"

	"github.com/weirlb/weir/cmd/weir/pcapng"
	"github.com/weirlb/weir/cmd/weir/version"
)

// PacketSource shows packets.
type PacketSource interface {
	// Drops lists packets that were dropped lately and that match.
	Drops(ctx context.Context, match *DropFilter) (*DropList, error)
	// Packets calls each for packets of the running workers, with the account of what was
	// left out so far, until a bound of q is reached, each fails, or ctx ends. Between
	// packets it calls each with nil, several times a second.
	Packets(ctx context.Context, q *PacketQuery, each func(*Packet, PacketAccount) error) error
}

// PacketQuery selects packets for a capture or a trace, and bounds it.
type PacketQuery struct {
	Filter  string        // pcap-filter expression
	SnapLen int           // bytes of a frame
	Packets int           // at most
	Bytes   int           // of frames, at most; 0: any
	Time    time.Duration // at most
	Rate    int           // packets per second and worker; 0: any
}

// PacketAccount counts packets that matched and are not shown.
type PacketAccount struct {
	Lost    uint64 // there was no room
	Skipped uint64 // beyond the rate
	// Interfaces are the frames of lost packets, where there are any. It is set between packets.
	Interfaces []LostFrames
}

// LostFrames counts frames of an interface.
type LostFrames struct {
	Interface      string
	Received, Sent uint64
}

// Bounds of captures and traces.
const (
	DefaultSnapLen     = 256
	MaxSnapLen         = 16384
	MaxPackets         = 100_000_000
	DefaultLivePackets = 1000
	MaxPacketTime      = 24 * time.Hour
	DefaultPacketTime  = 10 * time.Minute
	DefaultLiveRate    = 20
)

// Packet is a packet that the node has handled.
type Packet struct {
	Time time.Time `json:"time"` // of the receipt
	ID   uint64    `json:"id"`   // the same for all fragments in which a packet leaves
	// Verdict is forward, punt (to the kernel), reply, challenge, drop or queue (until a
	// neighbor or a fragment comes).
	Verdict string `json:"verdict"`
	// Reason is a drop reason, of a drop or of a refusal, and Text explains it.
	Reason string `json:"reason,omitempty"`
	Text   string `json:"text,omitempty"`
	// Interface is by which it came, OutInterface by which it left.
	Interface    string `json:"interface"`
	OutInterface string `json:"outInterface,omitempty"`
	Protocol     string `json:"protocol,omitempty"`
	Flags        string `json:"flags,omitempty"` // of TCP, as of TraceFlags
	// Source and Destination are those of the received packet, SentSource and
	// SentDestination those of the sent packet: address:port, or an address.
	Source          string `json:"source,omitempty"`
	Destination     string `json:"destination,omitempty"`
	SentSource      string `json:"sentSource,omitempty"`
	SentDestination string `json:"sentDestination,omitempty"`
	Size            int    `json:"size"` // of the received frame in bytes
	SentSize        int    `json:"sentSize,omitempty"`
	// Connection is the same for all packets of a connection, in both directions.
	Connection string `json:"connection,omitempty"`
	Service    string `json:"service,omitempty"`
	Mode       string `json:"mode,omitempty"`
	Client     string `json:"client,omitempty"`
	Frontend   string `json:"frontend,omitempty"`
	Endpoint   string `json:"endpoint,omitempty"`
	SNAT       string `json:"snat,omitempty"`
	// Received and Sent are the first bytes of the frames.
	Received []byte `json:"-"`
	Sent     []byte `json:"-"`
}

// Live is a line of the answer to /v1/trace/live: a packet, or at the end the account.
type Live struct {
	Packet  *Packet `json:"packet,omitempty"`
	Lost    uint64  `json:"lost"`    // packets without room
	Skipped uint64  `json:"skipped"` // packets beyond the rate
}

// DropFilter selects dropped packets. The zero value selects all.
type DropFilter struct {
	Reason  string       // "": any
	Service string       // namespace/name; "": any
	Prefix  netip.Prefix // of the source or the destination; invalid: any
}

// packetRoutes are those that show packets.
func packetRoutes(src Source, stall time.Duration) []route {
	bounds := []param{
		{name: "filter", usage: "pcap-filter expression; absent: every packet"},
		{name: "packets", kind: "integer", usage: "end after so many packets"},
		{name: "seconds", kind: "integer", usage: "end after this time"},
	}
	capture := append(bounds[:len(bounds):len(bounds)],
		param{name: "snaplen", kind: "integer", usage: fmt.Sprintf("bytes of a frame; absent: %d", DefaultSnapLen)},
		param{name: "bytes", kind: "integer", usage: "end after so many bytes of frames"})
	live := append(bounds[:len(bounds):len(bounds)],
		param{name: "rate", kind: "integer", usage: fmt.Sprintf("packets per second and worker; absent: %d", DefaultLiveRate)})
	return []route{{
		method: "GET", path: "/v1/drops", summary: "The packets that were dropped lately.", answer: DropList{},
		params: []param{
			{name: "reason", usage: "a drop reason"},
			{name: "service", usage: "namespace/name"},
			{name: "prefix", usage: "address or CIDR of the source or destination"},
		},
		handle: dropsHandler(src),
	}, {
		method: "GET", path: "/v1/capture", summary: "Packets as they come and leave, as a pcapng file that grows.",
		answer: "", produces: "application/x-pcapng", full: true, params: capture, handle: captureHandler(src, stall),
	}, {
		method: "GET", path: "/v1/trace/live", summary: "Packets and their verdicts, a JSON object per line.",
		answer: Live{}, produces: "application/x-ndjson", full: true, params: live, handle: liveHandler(src, stall),
	}}
}

func dropsHandler(src Source) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		f := DropFilter{Reason: r.FormValue("reason"), Service: r.FormValue("service")}
		if s := r.FormValue("prefix"); s != "" {
			var p place
			err := p.parse(s)
			if err == nil && p.port != 0 {
				err = fmt.Errorf("must be ADDRESS or a CIDR, is %q", s)
			}
			if err != nil {
				refuse(w, http.StatusBadRequest, fmt.Errorf("prefix: %w", err))
				return
			}
			f.Prefix = p.prefix
		}
		s, err := src.Drops(r.Context(), &f)
		reply(w, s, err)
	}
}

// packetQuery reads the parameters of a capture or trace.
func packetQuery(r *http.Request) (q *PacketQuery, err error) {
	q = &PacketQuery{Filter: r.FormValue("filter")}
	seconds := 0
	for _, p := range []struct {
		name            string
		to              *int
		absent, largest int
	}{
		{"packets", &q.Packets, MaxPackets, MaxPackets},
		{"seconds", &seconds, int(DefaultPacketTime.Seconds()), int(MaxPacketTime.Seconds())},
		{"snaplen", &q.SnapLen, DefaultSnapLen, MaxSnapLen},
		{"bytes", &q.Bytes, 0, 1 << 40},
	} {
		if *p.to, err = number(r, p.name, p.absent, p.largest); err != nil {
			return nil, err
		}
	}
	q.Time = time.Duration(seconds) * time.Second
	return q, nil
}

// captureHandler answers with a pcapng file. Received and sent frames are on interfaces of
// their own.
func captureHandler(src Source, stall time.Duration) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		q, err := packetQuery(r)
		if err != nil {
			refuse(w, http.StatusBadRequest, err)
			return
		}
		o := newPacketStream(w, stall)
		var file *captureFile
		var last PacketAccount
		err = src.Packets(r.Context(), q, func(p *Packet, a PacketAccount) error {
			if file == nil {
				w.Header().Set("Content-Type", "application/x-pcapng")
				f, err := pcapng.NewWriter(o, "Weir "+version.Get().Version, q.Filter, q.SnapLen)
				if err != nil {
					return err
				}
				file = &captureFile{w: f, interfaces: map[string]*captureInterface{}}
			}
			if p == nil {
				last = a
				if err := file.statistics(a, false); err != nil {
					return err
				}
				return o.flush()
			}
			return file.packet(p)
		})
		if file == nil {
			reply(w, nil, err)
			return
		}
		_ = file.statistics(last, true) // the client went away
		_ = o.flush()
	}
}

// liveHandler answers with a line per packet.
func liveHandler(src Source, stall time.Duration) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		q, err := packetQuery(r)
		if err == nil {
			q.Rate, err = number(r, "rate", DefaultLiveRate, 1_000_000)
		}
		if err != nil {
			refuse(w, http.StatusBadRequest, err)
			return
		}
		if r.FormValue("packets") == "" {
			q.Packets = DefaultLivePackets
		}
		o := newPacketStream(w, stall)
		begun, last := false, Live{}
		err = src.Packets(r.Context(), q, func(p *Packet, a PacketAccount) error {
			if !begun {
				w.Header().Set("Content-Type", "application/x-ndjson")
				begun = true
			}
			last.Lost, last.Skipped = a.Lost, a.Skipped
			if p == nil {
				return o.flush()
			}
			return json.NewEncoder(o).Encode(Live{Packet: p, Lost: a.Lost, Skipped: a.Skipped})
		})
		if !begun {
			reply(w, nil, err)
			return
		}
		_ = json.NewEncoder(o).Encode(last) // the client went away
		_ = o.flush()
	}
}
