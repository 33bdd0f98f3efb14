package explain

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/weirlb/weir/cmd/weir/problem"
)

// Render writes o as text for people.
func (o *Output) Render(w io.Writer) error {
	head := "Node not known\n"
	if o.Node != "" {
		head = "Node " + o.Node + "\n"
	}
	if _, err := io.WriteString(w, head); err != nil {
		return err
	}
	var b strings.Builder
	n, moved := 0, 0
	for s, err := range o.Services {
		if err != nil {
			return err
		}
		n++
		if s.moved() {
			moved++
		} else if o.onlyMoved {
			continue
		}
		b.Reset()
		b.WriteByte('\n')
		if s.idle(o.live) {
			for i := range s.Ports {
				s.Ports[i].Unuse()
			}
		}
		s.render(&b, o.WhatIf)
		if _, err := io.WriteString(w, b.String()); err != nil {
			return err
		}
	}
	b.Reset()
	switch {
	case n == 0:
		b.WriteString("\nNo Services\n")
	case o.onlyMoved:
		fmt.Fprintf(&b, "\nWhat if %s: new flows of %d of %d Services would move\n", o.WhatIf, moved, n)
	}
	for _, n := range o.Notes {
		fmt.Fprintf(&b, "\nnote: %s", n)
	}
	if len(o.Notes) > 0 {
		b.WriteByte('\n')
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// idle reports whether no new flow gets here by any frontend. Manifests alone do not tell of all frontends.
func (s *Service) idle(live bool) bool {
	left := func(p problem.Problem) bool { return p.Kind == problem.UnsupportedField }
	if len(s.Frontends) == 0 {
		return live || s.Unsupported != "" || slices.ContainsFunc(s.Problems, left)
	}
	return !slices.ContainsFunc(s.Frontends, func(f Frontend) bool { return f.Served })
}

func (s *Service) render(b *strings.Builder, change string) {
	fmt.Fprintf(b, "Service %s/%s", s.Namespace, s.Name)
	switch {
	case s.Headless:
		b.WriteString(": headless, no frontends")
	case s.ExternalName:
		b.WriteString(": ExternalName, no frontends")
	case s.Unsupported != "":
		fmt.Fprintf(b, ": left to the kernel, %s is not supported", s.Unsupported)
	case s.Mirrored:
		b.WriteString(": endpoints from a legacy Endpoints object")
	}
	if s.Mode != "" {
		fmt.Fprintf(b, ", forwarding mode %s", s.Mode)
	}
	b.WriteByte('\n')
	for _, e := range s.Errors {
		fmt.Fprintf(b, "  error: %s\n", e)
	}
	for _, e := range s.Warnings {
		fmt.Fprintf(b, "  warning: %s\n", e)
	}
	s.renderFrontends(b)
	for _, o := range s.Options {
		fmt.Fprintf(b, "  %s: %s\n", o.Name, o.Value)
	}
	for i := range s.Ports {
		s.Ports[i].render(b, change)
	}
}

func (p *Port) render(b *strings.Builder, change string) {
	b.WriteString("  port ")
	if p.Name != "" {
		b.WriteString(p.Name + " ")
	}
	fmt.Fprintf(b, "%d/%s", p.Port, p.Protocol)
	if p.NodePort != 0 {
		fmt.Fprintf(b, ", node port %d", p.NodePort)
	}
	b.WriteByte('\n')
	p.renderPolicies(b)
	p.renderEndpoints(b)
	if p.WhatIf != nil {
		fmt.Fprintf(b, "    what if %s:\n", change)
		p.WhatIf.Cluster.render(b, "cluster")
		p.WhatIf.Local.render(b, "local")
	}
}

func (p *Port) renderPolicies(b *strings.Builder) {
	if p.Unresolved {
		b.WriteString("    endpoints by name: not known here, weir run resolves them\n")
		if len(p.Detail) == 0 {
			return
		}
	}
	if p.ByFamily == nil {
		p.Cluster.render(b, "cluster", len(p.Detail), "refused", p.serves("Cluster"))
		p.Local.render(b, "local", len(p.Detail), p.emptyLocal(), p.serves("Local"))
		return
	}
	for _, name := range []string{"IPv4", "IPv6"} {
		f := p.ByFamily[name]
		n := 0
		for i := range p.Detail {
			if strings.HasPrefix(p.Detail[i].Address, "[") == (name == "IPv6") {
				n++
			}
		}
		f.Cluster.render(b, "cluster "+name, n, "refused", p.serves("Cluster"))
		f.Local.render(b, "local "+name, n, p.emptyLocal(), p.serves("Local"))
	}
}

// serves names the clients of a policy where both are in use.
func (p *Port) serves(policy string) string {
	if p.Cluster != nil && p.Local != nil && p.Policy == policy {
		return "; for clients from outside"
	}
	return ""
}

// emptyLocal is the fate of new flows when policy Local finds no endpoint.
func (p *Port) emptyLocal() string {
	if p.HasAnyEndpoints {
		return "dropped: there are endpoints elsewhere"
	}
	return "refused"
}

func (c *Choice) render(b *strings.Builder, policy string, of int, empty, clients string) {
	if c == nil {
		return
	}
	fmt.Fprintf(b, "    %s: tier %s, %d of %d endpoints", policy, c.Tier, len(c.Endpoints), of)
	if len(c.Endpoints) == 0 {
		fmt.Fprintf(b, "; new flows are %s", empty)
	}
	b.WriteString(clients + "\n")
}

func (p *Port) renderEndpoints(b *strings.Builder) {
	if len(p.Detail) == 0 {
		return
	}
	var table strings.Builder
	w := tabwriter.NewWriter(&table, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "ENDPOINT\tNODE\tZONE\tSTATE\tUSED\tTIER\tREASON")
	for i := range p.Detail {
		e := &p.Detail[i]
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n",
			e.Address, dash(e.Node), dash(e.Zone), e.State, p.used(e), p.tier(e), e.reason())
	}
	w.Flush() // into memory
	for line := range strings.Lines(table.String()) {
		b.WriteString("    " + line)
	}
}

// used says by which policy, where both are in use.
func (p *Port) used(e *Endpoint) string {
	switch {
	case !e.Cluster && !e.Local:
		return "no"
	case p.Cluster == nil || p.Local == nil:
		return "yes"
	case e.Cluster && e.Local:
		return "both"
	case e.Cluster:
		return "cluster"
	}
	return "local"
}

func (p *Port) tier(e *Endpoint) string {
	cluster, local := p.Cluster, p.Local
	if p.ByFamily != nil {
		f := p.ByFamily["IPv4"]
		if strings.HasPrefix(e.Address, "[") {
			f = p.ByFamily["IPv6"]
		}
		cluster, local = f.Cluster, f.Local
	}
	switch {
	case e.Cluster:
		return cluster.Tier
	case e.Local:
		return local.Tier
	}
	return "-"
}

func (e *Endpoint) reason() string {
	why := e.Reason
	if e.LocalReason != "" {
		why += "; local: " + e.LocalReason
	}
	if e.Weight > 0 {
		why += fmt.Sprintf("; weight %d", e.Weight)
	}
	return why
}

func (m *Move) render(b *strings.Builder, policy string) {
	if m == nil {
		return
	}
	fmt.Fprintf(b, "      %s: %s of new flows would move, tier %s\n", policy, percent(m.Moved), m.Tier)
	if m.Moved > 0 && len(m.To) == 0 {
		b.WriteString("        nobody would serve them\n")
		return
	}
	const most = 20
	for i, s := range m.To {
		if i == most {
			fmt.Fprintf(b, "        and %d more\n", len(m.To)-i)
			break
		}
		fmt.Fprintf(b, "        %s to %s\n", percent(s.Share), s.Endpoint)
	}
}

func percent(share float64) string { return fmt.Sprintf("%.1f %%", 100*share) }

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
