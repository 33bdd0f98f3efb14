package api

import (
	"fmt"
	"net/netip"
	"net/url"
	"strings"
)

// FlowFilter chooses flows. An empty field takes all; addresses are ADDRESS,
// ADDRESS:PORT or a CIDR.
type FlowFilter struct {
	Client, Frontend, Endpoint string
	Service                    string // namespace/name
	State                      string // as tcp-established, or a part of it
}

// values are the filter as parameters of a request.
func (f *FlowFilter) values() url.Values {
	v := url.Values{}
	for name, s := range map[string]string{"client": f.Client, "frontend": f.Frontend, "endpoint": f.Endpoint, "service": f.Service, "state": f.State} {
		if s != "" {
			v.Set(name, s)
		}
	}
	return v
}

// Matcher compiles the filter. The error names the field.
func (f *FlowFilter) Matcher() (*FlowMatcher, error) {
	m := &FlowMatcher{service: f.Service, state: f.State}
	for name, to := range map[string]struct {
		text string
		to   *place
	}{"client": {f.Client, &m.client}, "frontend": {f.Frontend, &m.frontend}, "endpoint": {f.Endpoint, &m.endpoint}} {
		if err := to.to.parse(to.text); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	return m, nil
}

// FlowMatcher is a compiled FlowFilter.
type FlowMatcher struct {
	client, frontend, endpoint place
	service, state             string
}

// Tuple reports whether a flow's addresses match.
func (m *FlowMatcher) Tuple(client, frontend, endpoint netip.AddrPort) bool {
	return m.client.has(client) && m.frontend.has(frontend) && m.endpoint.has(endpoint)
}

// Rest reports whether a flow's Service and state match.
func (m *FlowMatcher) Rest(service, state string) bool {
	return (m.service == "" || m.service == service) && strings.Contains(state, m.state)
}

// place is a prefix and a port; the zero value is anywhere.
type place struct {
	prefix netip.Prefix
	port   uint16
}

func (p *place) parse(s string) error {
	if s == "" {
		return nil
	}
	if ap, err := netip.ParseAddrPort(s); err == nil {
		p.prefix, p.port = netip.PrefixFrom(ap.Addr(), ap.Addr().BitLen()), ap.Port()
		return nil
	}
	if a, err := netip.ParseAddr(strings.Trim(s, "[]")); err == nil {
		p.prefix = netip.PrefixFrom(a, a.BitLen())
		return nil
	}
	prefix, err := netip.ParsePrefix(s)
	if err != nil {
		return fmt.Errorf("must be ADDRESS, ADDRESS:PORT or a CIDR, is %q", s)
	}
	p.prefix = prefix
	return nil
}

func (p *place) has(a netip.AddrPort) bool {
	return !p.prefix.IsValid() || p.prefix.Contains(a.Addr()) && (p.port == 0 || p.port == a.Port())
}
