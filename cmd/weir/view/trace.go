package view

import (
	"fmt"
	"io"
	"strings"

	"github.com/weirlb/weir/cmd/weir/api"
)

// Trace writes what the node would do with a packet, a line for each decision.
func Trace(w io.Writer, t *api.Trace) error {
	b := &strings.Builder{}
	rows := table(b)
	line := func(what, format string, args ...any) { row(rows, what, printable(fmt.Sprintf(format, args...))) }
	flags := ""
	if t.Flags != "" {
		flags = " " + t.Flags
	}
	line("packet", "%s%s %s > %s, %d B, by %s", t.Protocol, flags, t.Source, t.Destination, t.Size, t.Interface)
	switch {
	case t.SteeringError != "":
		line("steering", "not known: %s", t.SteeringError)
	case t.Steering == "redirected":
		line("steering", "redirected to Weir")
	case t.Steering == "denied":
		line("steering", "denied: dropped before Weir's packet loop")
	default:
		line("steering", "%s: the kernel gets the packet", t.Steering)
	}
	traceConnection(line, t)
	traceFrontend(line, t)
	if h := t.NextHop; h != nil {
		by, mac := h.Interface, ""
		if h.ByHost {
			by += " (through the kernel)"
		}
		if h.MAC != "" {
			mac = " " + h.MAC
		}
		line("next hop", "%s by %s, MTU %d, neighbor %s%s", h.Address, by, h.MTU, h.Neighbor, mac)
	}
	verdict := t.Verdict
	if t.Reason != "" {
		verdict += ": " + t.Reason
		if t.DenyList != "" {
			verdict += " by list " + t.DenyList
		}
		verdict += ", " + t.Text
	}
	line("verdict", "%s", verdict)
	if s := t.Sent; s != nil {
		more := ""
		if s.Fragments > 1 {
			more = fmt.Sprintf(", first of %d fragments", s.Fragments)
		}
		if s.Answer != "" {
			more += ", " + s.Answer
		}
		line("sent", "%s %s > %s, %d B, TTL %d, by %s%s", s.Protocol, s.Source, s.Destination, s.Size, s.TTL, s.Interface, more)
	}
	rows.Flush()
	_, err := io.WriteString(w, b.String())
	return err
}

func traceConnection(line func(what, format string, args ...any), t *api.Trace) {
	c := t.Connection
	if c == nil {
		line("connection", "none")
		return
	}
	if c.Existing {
		line("connection", "%s, the %s sends", c.State, c.From)
	} else {
		line("connection", "new")
	}
	if f := t.Frontend; f == nil && c.Service != "" {
		line("service", "%s, frontend %s", c.Service, c.Frontend)
	}
	snat := ""
	if c.SNAT != "" {
		snat = ", SNAT " + c.SNAT
	}
	if c.SNATPorts != "" {
		snat += " of ports " + c.SNATPorts
	}
	line("mode", "%s to %s%s", c.Mode, c.Endpoint, snat)
}

// maxTraced is how many endpoints the text shows.
const maxTraced = 12

func traceFrontend(line func(what, format string, args ...any), t *api.Trace) {
	f := t.Frontend
	if f == nil {
		return
	}
	line("service", "%s, frontend %s (%s)", f.Service, f.Address, f.Kind)
	limits := ""
	if f.MaxConnections > 0 {
		limits += fmt.Sprintf(" of at most %d", f.MaxConnections)
	}
	if f.NewConnectionsPerSecond > 0 {
		limits += fmt.Sprintf(", at most %d new per second", f.NewConnectionsPerSecond)
	}
	line("", "%d connections open%s", f.Open, limits)
	line("endpoints", "%d, tier %s", f.Endpoints, dash(f.Tier))
	ch := t.Choice
	if ch == nil {
		return
	}
	affinity := ""
	if ch.AffinitySeconds > 0 {
		affinity = fmt.Sprintf(", affinity of %d s", ch.AffinitySeconds)
	}
	line("choice", "%s by %s (%s%s), hash %s", ch.Endpoint, ch.Rule, ch.Algorithm, affinity, ch.Hash)
	shown := ch.Candidates[:min(len(ch.Candidates), maxTraced)]
	for _, e := range shown {
		chosen := ""
		if e.Address == ch.Endpoint {
			chosen = ", chosen"
		}
		line("", "%s weight %d, %d open%s", e.Address, e.Weight, e.Open, chosen)
	}
	if more := len(ch.Candidates) - len(shown) + ch.LeftOut; more > 0 {
		line("", "and %d more", more)
	}
}
