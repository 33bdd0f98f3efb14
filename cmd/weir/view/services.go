package view

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/weirlb/weir/cmd/weir/api"
)

// Services writes Services as a table, a line per port and tier in use. With prev, an earlier
// list, it has rates per second in place of sums.
func Services(w io.Writer, l, prev *api.ServiceList) error {
	before, seconds := map[string]*api.ServiceState{}, 0.0
	unit := ""
	if prev != nil {
		seconds, unit = l.Time.Sub(prev.Time).Seconds(), "/S"
		for i := range prev.Services {
			before[prev.Services[i].Service] = &prev.Services[i]
		}
	}
	b := &strings.Builder{}
	t := table(b)
	row(t, "SERVICE", "PORT", "TIER", "SINCE", "ENDPOINTS", "OPEN", "NEW"+unit, "FAILED"+unit, "RESENT"+unit, "PACKETS"+unit, "BYTES"+unit, "SYN-ACK", "DROPS"+unit)
	for i := range l.Services {
		s := &l.Services[i]
		old := before[s.Service]
		if old == nil {
			old = &api.ServiceState{}
		}
		packets := func(s *api.ServiceState) uint64 { return s.Packets.FromClients + s.Packets.FromEndpoints }
		size := func(s *api.ServiceState) uint64 { return s.Bytes.FromClients + s.Bytes.FromEndpoints }
		rest := []string{
			fmt.Sprint(s.Open), per(s.NewConnections, old.NewConnections, seconds), per(s.FailedHandshakes, old.FailedHandshakes, seconds),
			per(s.Retransmissions.Sum(), old.Retransmissions.Sum(), seconds),
			about(packets(s), packets(old), seconds, count), about(size(s), size(old), seconds, bytes), meanTime(&s.Handshakes), drops(s, old, seconds),
		}
		for j, line := range portLines(s, l.Time) {
			if j > 0 {
				line[0], rest = "", make([]string, 8)
			}
			row(t, append(line, rest...)...)
		}
	}
	t.Flush()
	if len(l.Services) == 0 {
		b.WriteString("No Service\n")
	} else {
		b.WriteString("\nPackets and bytes are estimates (~), without those that the kernel forwards by the flow table.\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// portLines are the first five cells of each line of a Service.
func portLines(s *api.ServiceState, now time.Time) [][]string {
	var out [][]string
	for i := range s.Ports {
		p := &s.Ports[i]
		name := fmt.Sprintf("%d/%s", p.Port, p.Protocol)
		if p.Name != "" {
			name = p.Name + " " + name
		}
		if len(p.Tiers) == 0 {
			out = append(out, []string{s.Service, name, "no frontend", "-", fmt.Sprintf("- / %d", p.Endpoints)})
		}
		for _, x := range p.Tiers {
			tier := x.Tier
			if len(p.Tiers) > 1 {
				tier += " (" + x.Family + " " + x.Scope + ")"
			}
			if x.Previous != "" {
				tier += ", was " + x.Previous
			}
			out = append(out, []string{s.Service, name, tier, Age(now.Sub(x.Since)), fmt.Sprintf("%d / %d", x.Endpoints, p.Endpoints)})
		}
	}
	if len(out) == 0 {
		out = append(out, []string{s.Service, "-", "-", "-", "-"})
	}
	return out
}

// per is a count, or with seconds the rate since before.
func per(now, before uint64, seconds float64) string {
	if seconds <= 0 {
		return fmt.Sprint(now)
	}
	return fmt.Sprintf("%.0f", api.PerSecond(now, before, seconds))
}

func count(n uint64) string { return Short(float64(n)) }

// about is per of an estimate.
func about(now, before uint64, seconds float64, text func(uint64) string) string {
	if now == 0 {
		return "0"
	}
	if seconds > 0 {
		now = uint64(api.PerSecond(now, before, seconds))
	}
	return "~" + text(now)
}

func drops(s, old *api.ServiceState, seconds float64) string {
	if seconds <= 0 {
		if len(s.Drops) == 0 {
			return "-"
		}
		return joinCounts(s.Drops)
	}
	return per(api.Sum(s.Drops), api.Sum(old.Drops), seconds)
}

func meanTime(h *api.Histogram) string {
	if h.Count == 0 {
		return "-"
	}
	return shortTime(h.SumSeconds / float64(h.Count))
}

// shortTime is a time with two digits.
func shortTime(seconds float64) string {
	d := time.Duration(seconds * float64(time.Second))
	unit := time.Microsecond
	for 100*unit < d {
		unit *= 10
	}
	return d.Round(unit).String()
}

// Endpoints writes endpoints as a table.
func Endpoints(w io.Writer, l *api.EndpointList) error {
	b := &strings.Builder{}
	t := table(b)
	now := time.Now()
	row(t, "SERVICE", "PORT", "ENDPOINT", "NODE", "ZONE", "STATE", "HEALTH", "POLICY", "USED", "CONNECTIONS", "OPEN", "ANSWERED", "REFUSED", "UNANSWERED", "REASON")
	for _, e := range l.Endpoints {
		row(t, e.Service, e.Port+"/"+e.Protocol, e.Address, dash(e.Node), dash(e.Zone), e.State, Health(&e.Health, now), e.Policy, yes(e.Used),
			fmt.Sprint(e.Connections), fmt.Sprint(e.Open), fmt.Sprint(e.Attempts.Answered), fmt.Sprint(e.Attempts.Refused), fmt.Sprint(e.Attempts.Unanswered), e.Reason)
	}
	t.Flush()
	_, err := io.WriteString(w, b.String())
	return err
}

// Health is the state of an endpoint's checks, with its age and the latency of the last probe that passed: passing
// 5m0s, 1.2ms.
func Health(h *api.EndpointHealth, now time.Time) string {
	out := h.State
	if h.Since != nil {
		out += " " + Age(now.Sub(*h.Since))
	}
	if h.State == api.HealthPassing && h.LatencySeconds > 0 {
		out += ", " + shortTime(h.LatencySeconds)
	}
	return dash(out)
}

func yes(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

// ConnectionCount writes groups of connections as a table.
func ConnectionCount(w io.Writer, c *api.ConnectionCount) error {
	b := &strings.Builder{}
	t := table(b)
	row(t, "CONNECTIONS", "SHARE", "GROUP")
	for _, g := range c.Groups {
		row(t, fmt.Sprint(g.Count), percent(g.Count, c.Matched), g.Key)
	}
	if c.Others > 0 {
		row(t, fmt.Sprint(c.Others), percent(c.Others, c.Matched), "others")
	}
	row(t, fmt.Sprint(c.Matched), "", "in all")
	t.Flush()
	if c.Error > 0 {
		fmt.Fprintf(b, "\nCounts may be too low by %d: there are very many groups.\n", c.Error)
	}
	_, err := io.WriteString(w, b.String())
	return err
}
