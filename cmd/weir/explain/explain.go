// Package explain gives the endpoints of each Service that a node uses, with the reasons:
// the command `weir explain`, and the answers of the daemon on the admin socket.
package explain

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/weirlb/weir/cmd/weir/problem"
	"github.com/weirlb/weir/discovery"
	"github.com/weirlb/weir/topology"
)

// Service is a Service. A headless or ExternalName Service has no frontends, and so no
// Ports.
type Service struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Errors are those of the Service and of the objects that hold the endpoints.
	Errors   []string `json:"errors"`
	Warnings []string `json:"warnings,omitempty"`
	// Unsupported is the field for which Weir leaves it to the kernel.
	Unsupported  string `json:"unsupported,omitempty"`
	Headless     bool   `json:"headless,omitempty"`
	ExternalName bool   `json:"externalName,omitempty"`
	// Mirrored is true when the endpoints are from a legacy Endpoints object.
	Mirrored bool `json:"mirrored,omitempty"`
	// Mode is the forwarding mode that the Service asks for, "" for the configured mode.
	Mode    string   `json:"forwardingMode,omitempty"`
	Options []Option `json:"options,omitempty"` // other options of the packet path
	Ports   []Port   `json:"ports"`
	// Frontends are where it is to be reached from outside.
	Frontends []Frontend `json:"frontends,omitempty"`
	// Problems are all that is not served of it, or not as it asks. Errors and
	// Warnings are among them.
	Problems []problem.Problem `json:"problems,omitempty"`
}

// Port is a Service port. If the endpoints are of both address families
// Cluster and Local are both families' together, and ByFamily has each.
type Port struct {
	Name     string  `json:"name"`
	Protocol string  `json:"protocol"`
	Port     uint16  `json:"port"`
	NodePort uint16  `json:"nodePort"` // 0: none
	Cluster  *Choice `json:"cluster"`  // null: never used
	Local    *Choice `json:"local"`    // null: never used
	// Policy is the policy for clients from outside, Cluster or Local; of a Service that has no
	// address outside for those inside.
	Policy string `json:"-"`
	// HasAnyEndpoints is true when an endpoint could serve somewhere.
	HasAnyEndpoints bool              `json:"hasAnyEndpoints"`
	ByFamily        map[string]Family `json:"byFamily,omitempty"`
	// Unresolved is true if there are endpoints by name beside those of Detail: weir run resolves them.
	Unresolved bool `json:"unresolved,omitempty"`
	// Detail is every endpoint, used or not.
	Detail []Endpoint `json:"detail"`
	WhatIf *WhatIf    `json:"whatIf,omitempty"`
}

// Family is a port in an address family, IPv4 or IPv6.
type Family struct {
	Cluster         *Choice `json:"cluster"`
	Local           *Choice `json:"local"`
	HasAnyEndpoints bool    `json:"hasAnyEndpoints"`
}

// Choice is the endpoints that a traffic policy uses. Endpoints are sorted by address,
// then port. Shares, present when they are not equal, are the parts of the
// new flows in the same order; those of an address family add up to 1.
type Choice struct {
	Tier      string    `json:"tier"`
	Endpoints []string  `json:"endpoints"`
	Shares    []float64 `json:"shares,omitempty"`
}

// Endpoint reports whether an endpoint gets new flows, and why.
type Endpoint struct {
	Address string `json:"address"` // address:port
	Node    string `json:"node,omitempty"`
	Zone    string `json:"zone,omitempty"`
	State   string `json:"state"`            // ready, not-ready, terminating, terminated
	Weight  uint32 `json:"weight,omitempty"` // of the Service or the node, 0: none given
	Cluster bool   `json:"cluster"`          // used by Cluster policy
	Local   bool   `json:"local"`            // used by Local policy
	Reason  string `json:"reason"`
	// Used is true where new flows of clients get here, by the policy of the port.
	Used bool `json:"-"`
	// LocalReason is the Local policy's, where both policies are in use.
	LocalReason string `json:"localReason,omitempty"`
	own         string // before Reason: what the node itself has against it
}

// Unuse lets no endpoint count as used: no frontend of the Service is served.
func (p *Port) Unuse() {
	for i := range p.Detail {
		e := &p.Detail[i]
		e.Used, e.Cluster, e.Local = false, false, false
		e.own = "no frontend of the Service is served; " + e.own
		e.Reason = "no frontend of the Service is served; " + e.Reason
	}
}

// ClientsReason is the reason for Used.
func (p *Port) ClientsReason(e *Endpoint) string {
	if p.Policy == "Local" && e.LocalReason != "" {
		return e.own + e.LocalReason
	}
	return e.Reason
}

func buildService(svc *discovery.Service, node topology.Node) Service {
	out := Service{
		Namespace:    svc.Name.Namespace,
		Name:         svc.Name.Name,
		Errors:       append([]string{}, svc.Errors...),
		Warnings:     svc.Warnings,
		Unsupported:  svc.Unsupported,
		Mode:         svc.Options.ForwardingMode,
		Headless:     svc.Headless,
		ExternalName: svc.ExternalName,
		Mirrored:     svc.Mirrored,
		Options:      askedOptions(svc),
		Ports:        []Port{},
	}
	if svc.Headless || svc.ExternalName {
		return out
	}
	for i := range svc.Ports {
		out.Ports = append(out.Ports, buildPort(svc, &svc.Ports[i], node))
	}
	return out
}

func buildPort(svc *discovery.Service, p *discovery.Port, node topology.Node) Port {
	out := Port{Name: p.Name, Protocol: p.Protocol, Port: p.Port, NodePort: p.NodePort, Policy: "Cluster", Unresolved: p.Unresolved, Detail: []Endpoint{}}
	if svc.Policy.ClientsUseLocal() {
		out.Policy = "Local"
	}
	var families []Family
	var names []string
	for _, f := range split(p.Endpoints) {
		r := topology.Explain(svc.Policy, f.eps, node)
		families = append(families, Family{
			Cluster:         choice(r.Cluster, f.eps),
			Local:           choice(r.Local, f.eps),
			HasAnyEndpoints: r.HasAnyEndpoints,
		})
		names = append(names, f.name)
		out.Detail = append(out.Detail, details(&r, f.eps)...)
	}
	for i := range out.Detail {
		e := &out.Detail[i]
		e.Used = out.Policy == "Local" && e.Local || out.Policy == "Cluster" && e.Cluster
	}
	if len(families) == 1 {
		out.Cluster, out.Local, out.HasAnyEndpoints = families[0].Cluster, families[0].Local, families[0].HasAnyEndpoints
		return out
	}
	out.ByFamily = map[string]Family{}
	for i, name := range names {
		out.ByFamily[name] = families[i]
	}
	second := len(svc.ClusterIPs) > 0 && svc.ClusterIPs[0].Is6()
	out.Cluster = join(families[0].Cluster, families[1].Cluster, second)
	out.Local = join(families[0].Local, families[1].Local, second)
	out.HasAnyEndpoints = families[0].HasAnyEndpoints || families[1].HasAnyEndpoints
	return out
}

// familyEndpoints are the endpoints of an address family: the choice is made
// in each by itself, as kube-proxy's two proxiers do.
type familyEndpoints struct {
	name string
	eps  []topology.Endpoint
}

// split returns the families that have endpoints, or a family without any. eps are
// sorted by address, IPv4 first.
func split(eps []topology.Endpoint) []familyEndpoints {
	at := slices.IndexFunc(eps, func(e topology.Endpoint) bool { return e.AddrPort.Addr().Is6() })
	switch {
	case at < 0:
		return []familyEndpoints{{"IPv4", eps}}
	case at == 0:
		return []familyEndpoints{{"IPv6", eps}}
	}
	return []familyEndpoints{{"IPv4", eps[:at]}, {"IPv6", eps[at:]}}
}

func choice(c *topology.Chosen, eps []topology.Endpoint) *Choice {
	if c == nil {
		return nil
	}
	out := &Choice{Tier: string(c.Tier), Endpoints: make([]string, 0, len(c.Endpoints)), Shares: c.Shares}
	for _, i := range c.Endpoints {
		out.Endpoints = append(out.Endpoints, eps[i].AddrPort.String())
	}
	return out
}

// join puts the choices of two families together. The tier is the Service's
// primary family's, unless only the other family has any endpoint to use.
func join(v4, v6 *Choice, primary6 bool) *Choice {
	if v4 == nil || v6 == nil {
		return nil
	}
	first, second := v4, v6
	if primary6 {
		first, second = v6, v4
	}
	out := &Choice{Tier: first.Tier, Endpoints: append(append([]string{}, v4.Endpoints...), v6.Endpoints...)}
	if len(first.Endpoints) == 0 {
		out.Tier = second.Tier
	}
	if v4.Shares != nil || v6.Shares != nil {
		out.Shares = slices.Concat(v4.shares(), v6.shares())
	}
	return out
}

// shares are the shares, spelt out where they are equal.
func (c *Choice) shares() []float64 {
	if c.Shares != nil {
		return c.Shares
	}
	out := make([]float64, len(c.Endpoints))
	for i := range out {
		out[i] = 1 / float64(len(out))
	}
	return out
}

func details(r *topology.Result, eps []topology.Endpoint) []Endpoint {
	out := make([]Endpoint, len(eps))
	for i := range eps {
		e := &eps[i]
		out[i] = Endpoint{
			Address: e.AddrPort.String(),
			Node:    e.NodeName,
			Zone:    e.Zone,
			State:   e.State(),
			Weight:  e.Weight,
			Reason:  r.Reasons[i],
		}
		if r.Cluster != nil && r.Local != nil {
			out[i].LocalReason = r.LocalReasons[i]
		}
	}
	if r.Cluster != nil {
		for _, i := range r.Cluster.Endpoints {
			out[i].Cluster = true
		}
	}
	if r.Local != nil {
		for _, i := range r.Local.Endpoints {
			out[i].Local = true
		}
	}
	return out
}

// addrOf parses an address, with port 0, or address:port.
func addrOf(s string) (addr netip.Addr, port uint16, ok bool) {
	if ap, err := netip.ParseAddrPort(s); err == nil {
		return ap.Addr().Unmap(), ap.Port(), ap.Port() != 0
	}
	a, err := netip.ParseAddr(strings.Trim(s, "[]"))
	return a.Unmap(), 0, err == nil
}
