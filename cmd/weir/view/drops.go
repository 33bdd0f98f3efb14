package view

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/weirlb/weir/cmd/weir/api"
)

// serviceDrops counts the packets of a list for a Service and reason.
type serviceDrops struct {
	service string
	reason  string
	packets int
}

// dropsByService counts the packets by Service and reason, the most first.
func dropsByService(l *api.DropList) []serviceDrops {
	n := map[serviceDrops]int{}
	for _, p := range l.Packets {
		if p.Service != "" {
			n[serviceDrops{service: p.Service, reason: p.Reason}]++
		}
	}
	out := make([]serviceDrops, 0, len(n))
	for k, packets := range n {
		k.packets = packets
		out = append(out, k)
	}
	slices.SortFunc(out, func(a, b serviceDrops) int {
		return cmp.Or(cmp.Compare(b.packets, a.packets), cmp.Compare(a.service, b.service), cmp.Compare(a.reason, b.reason))
	})
	return out
}

// maxServiceDrops is how many Services the text shows.
const maxServiceDrops = 10

// Drops writes dropped packets as a table, with the Services of their frontends.
func Drops(w io.Writer, l *api.DropList) error {
	b := &strings.Builder{}
	if len(l.Packets) == 0 {
		b.WriteString("No packet was dropped\n")
	}
	if top := dropsByService(l); len(top) > 0 {
		t := table(b)
		row(t, "SERVICE", "REASON", "OF THE PACKETS BELOW")
		for _, s := range top[:min(len(top), maxServiceDrops)] {
			row(t, s.service, s.reason, fmt.Sprint(s.packets))
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
		cells := []string{fmt.Sprintf("  %.0fs ago", p.AgeSeconds), dash(p.Interface), fmt.Sprintf("%d B", p.Size),
			dash(p.Protocol), dash(p.Source), dash(p.Destination), dash(p.Service)}
		if p.DenyList != "" {
			cells = append(cells, "list "+p.DenyList)
		}
		row(t, cells...)
	}
	t.Flush()
	_, err := io.WriteString(w, b.String())
	return err
}

// Drop writes a dropped packet as a line.
func Drop(w io.Writer, p *api.DroppedPacket) error {
	text := fmt.Sprintf("%s %s %s %d B %s %s > %s %s", p.Time.Local().Format("15:04:05.000"), p.Reason,
		dash(p.Interface), p.Size, dash(p.Protocol), dash(p.Source), dash(p.Destination), dash(p.Service))
	if p.DenyList != "" {
		text += " list " + p.DenyList
	}
	_, err := fmt.Fprintln(w, printable(text))
	return err
}
