package statuspage

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/cmd/weir/view"
)

// newRow is a Service without its endpoints.
func newRow(s *service, now time.Time) serviceRow {
	r := serviceRow{
		Name: s.name, Link: link(s.name), Open: number(uint64(s.open)), NewRate: rateText(s.rate.Flows), Packets: "~" + rateText(s.rate.Packets),
		Chart: newChart("Packets of "+s.name, s.rate.Packets, "/s", &s.packetChart), Drops: number(s.Totals.Drops),
		Unhealthy: s.unhealthy,
	}
	if s.rate.Packets == 0 {
		r.Packets = "0"
	}
	var reasons []string
	for reason, n := range s.reasons {
		reasons = append(reasons, fmt.Sprintf("%s %d", reason, n))
	}
	slices.Sort(reasons)
	r.DropsNote = strings.Join(reasons, ", ")
	for i := range s.ports {
		r.Ports = append(r.Ports, newPort(&s.ports[i], now))
	}
	return r
}

func newPort(p *api.ServicePort, now time.Time) portRow {
	out := portRow{Name: strings.TrimSpace(fmt.Sprintf("%s %d/%s", p.Name, p.Port, p.Protocol)), Endpoints: fmt.Sprintf("%d of %d ready", p.Ready, p.Endpoints)}
	for _, t := range p.Tiers {
		row := tierRow{Tier: t.Tier, Scope: t.Family + " " + t.Scope, Since: view.Age(now.Sub(t.Since)), Previous: t.Previous, Endpoints: fmt.Sprintf("%d / %d", t.Endpoints, p.Endpoints)}
		at := slices.IndexFunc(out.Tiers, func(o tierRow) bool { return o.Tier == row.Tier && o.Previous == row.Previous })
		if at >= 0 { // families and scopes mostly agree
			out.Tiers[at].Scope += ", " + row.Scope
			continue
		}
		out.Tiers = append(out.Tiers, row)
	}
	if len(out.Tiers) == 1 && len(p.Tiers) > 1 {
		out.Tiers[0].Scope = "" // all agree
	}
	return out
}

// zonesOf sorts endpoints by zone and node; node is this one.
func zonesOf(list []endpoint, node string) []zone {
	var out []zone
	for _, e := range list {
		name := cmp.Or(e.Zone, "no zone")
		at := slices.IndexFunc(out, func(z zone) bool { return z.Name == name })
		if at < 0 {
			at = len(out)
			out = append(out, zone{Name: name})
		}
		z := &out[at]
		z.Endpoints = append(z.Endpoints, e)
		name = cmp.Or(e.Node, "no node")
		at = slices.IndexFunc(z.Nodes, func(n zoneNode) bool { return n.Name == name })
		if at < 0 {
			at = len(z.Nodes)
			z.Nodes = append(z.Nodes, zoneNode{Name: name, This: name == node})
		}
		z.Nodes[at].Endpoints = append(z.Nodes[at].Endpoints, e)
	}
	for i := range out {
		z := &out[i]
		z.Text = statesText(z.Endpoints)
		slices.SortFunc(z.Nodes, func(a, b zoneNode) int {
			return cmp.Or(-compareBool(a.This, b.This), strings.Compare(a.Name, b.Name))
		})
	}
	slices.SortFunc(out, func(a, b zone) int {
		return cmp.Or(-compareBool(a.isNear(), b.isNear()), strings.Compare(a.Name, b.Name))
	})
	return out
}

// isNear is true of the zone of this node.
func (z *zone) isNear() bool {
	return slices.ContainsFunc(z.Nodes, func(n zoneNode) bool { return n.This })
}

func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	}
	return -1
}

// statesText counts endpoints by state.
func statesText(list []endpoint) string {
	var parts []string
	for _, state := range []string{"ready", "terminating", "terminated", "not-ready"} {
		n := 0
		for _, e := range list {
			if e.State == state {
				n++
			}
		}
		if n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, state))
		}
	}
	takes := 0
	for _, e := range list {
		if e.Takes {
			takes++
		}
	}
	return strings.Join(append(parts, fmt.Sprintf("%d get new flows", takes)), ", ")
}

// addEndpoints draws the endpoints of a Service in the list.
func (r *serviceRow) addEndpoints(list []endpoint, more int, node string) {
	r.MoreEndpoints = more + max(0, len(list)-maxSquares)
	r.Zones = zonesOf(list[:min(len(list), maxSquares)], node)
	var texts []string
	for _, z := range r.Zones {
		texts = append(texts, z.Name+": "+z.Text)
	}
	r.ZonesText = strings.Join(texts, "; ")
}

// Size of the view box of a chart.
const chartWidth, chartHeight = 120, 28

// newChart draws a series, scaled to the largest value.
func newChart(name string, now float64, unit string, s *series) chart {
	c := chart{Name: name, Value: rateText(now) + unit}
	values := s.list()
	if len(values) == 0 {
		c.Label = name + ": no values yet"
		return c
	}
	largest := slices.Max(values)
	c.Label = fmt.Sprintf("%s: now %s, at most %s%s in %s", name, rateText(now), rateText(float64(largest)), unit, view.Age(time.Duration(len(values))*apart))
	if len(values) == 1 {
		values = []float32{values[0], values[0]}
	}
	b := make([]byte, 0, 12*len(values))
	for i, v := range values {
		y := float64(chartHeight - 1)
		if largest > 0 {
			y -= float64(v/largest) * (chartHeight - 3)
		}
		x := chartWidth - float64(len(values)-1-i)*chartWidth/float64(points-1)
		if i > 0 {
			b = append(b, ' ')
		}
		b = strconv.AppendFloat(b, x, 'f', 1, 64)
		b = append(b, ',')
		b = strconv.AppendFloat(b, y, 'f', 1, 64)
	}
	c.Line = string(b)
	c.Start, _, _ = strings.Cut(c.Line, ",")
	return c
}

func rateText(v float64) string {
	switch {
	case v == 0:
		return "0"
	case v < 10:
		return strconv.FormatFloat(v, 'f', 1, 64)
	}
	return view.Short(v)
}

// number is n with thin spaces between thousands.
func number(n uint64) string {
	s := strconv.FormatUint(n, 10)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "\u202f" + s[i:]
	}
	return s
}
