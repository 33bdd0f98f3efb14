package api

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
)

// DroppedPacket is a packet that was dropped lately: of each reason and worker
// the last 64, of a flood a few per second.
type DroppedPacket struct {
	Reason string `json:"reason"`
	// Text says what the reason means.
	Text       string  `json:"text"`
	AgeSeconds float64 `json:"ageSeconds"`
	Interface  string  `json:"interface"` // by which it came
	Size       int     `json:"size"`      // in bytes
	// Protocol, Source and Destination are empty where the packet has none that
	// can be read: address:port, or the address of a fragment or of ICMP.
	Protocol    string `json:"protocol,omitempty"`
	Source      string `json:"source,omitempty"`
	Destination string `json:"destination,omitempty"`
	// Service is whose frontend the destination is.
	Service string `json:"service,omitempty"`
}

// DropList is the answer to /v1/drops.
type DropList struct {
	Packets []DroppedPacket `json:"packets"` // by reason, the newest first
}

// ServiceDrops is how many of the packets of a list were for a Service.
type ServiceDrops struct {
	Service string
	Reason  string
	Packets int
}

// Services sums the packets up by Service and reason, the most first.
func (l *DropList) Services() []ServiceDrops {
	n := map[ServiceDrops]int{}
	for _, p := range l.Packets {
		if p.Service != "" {
			n[ServiceDrops{Service: p.Service, Reason: p.Reason}]++
		}
	}
	out := make([]ServiceDrops, 0, len(n))
	for k, packets := range n {
		k.Packets = packets
		out = append(out, k)
	}
	slices.SortFunc(out, func(a, b ServiceDrops) int {
		return cmp.Or(cmp.Compare(b.Packets, a.Packets), cmp.Compare(a.Service, b.Service), cmp.Compare(a.Reason, b.Reason))
	})
	return out
}

// maxServiceDrops is how many Services the text shows.
const maxServiceDrops = 10

// RenderDrops writes the packets as a table, with the Services that they were
// for.
func RenderDrops(w io.Writer, l *DropList) error {
	b := &strings.Builder{}
	if len(l.Packets) == 0 {
		b.WriteString("No packet was dropped\n")
	}
	if top := l.Services(); len(top) > 0 {
		t := table(b)
		row(t, "SERVICE", "REASON", "OF THE PACKETS BELOW")
		for _, s := range top[:min(len(top), maxServiceDrops)] {
			row(t, s.Service, s.Reason, fmt.Sprint(s.Packets))
		}
		t.Flush()
		b.WriteByte('\n')
	}
	last := ""
	t := table(b)
	for _, p := range l.Packets {
		if p.Reason != last {
			t.Flush()
			fmt.Fprintf(b, "%s: %s\n", p.Reason, p.Text)
			last = p.Reason
		}
		row(t, fmt.Sprintf("  %.0fs ago", p.AgeSeconds), dash(p.Interface), fmt.Sprintf("%d B", p.Size), dash(p.Protocol), dash(p.Source), dash(p.Destination), dash(p.Service))
	}
	t.Flush()
	_, err := io.WriteString(w, b.String())
	return err
}
