package api

import (
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// FlowFilter chooses flows. An empty field takes all; addresses are ADDRESS,
// ADDRESS:PORT or a CIDR.
type FlowFilter struct {
	Client, Frontend, Endpoint string
	Service                    string // namespace/name
	State                      string // as tcp-established, or a part of it
	Protocol                   string // TCP, UDP, SCTP
	MinAge, MaxAge, MinIdle    time.Duration
}

// values are the filter as parameters of a request.
func (f *FlowFilter) values() url.Values {
	v := url.Values{}
	for name, s := range map[string]string{
		"client": f.Client, "frontend": f.Frontend, "endpoint": f.Endpoint,
		"service": f.Service, "state": f.State, "protocol": f.Protocol,
	} {
		if s != "" {
			v.Set(name, s)
		}
	}
	for name, d := range map[string]time.Duration{"minAge": f.MinAge, "maxAge": f.MaxAge, "minIdle": f.MinIdle} {
		if d != 0 {
			v.Set(name, d.String())
		}
	}
	return v
}

// String is the filter for a log: its parameters by name, as the API takes them.
func (f FlowFilter) String() string {
	v := f.values()
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(v)) {
		parts = append(parts, name+"="+v.Get(name))
	}
	return strings.Join(parts, " ")
}

// filterOf is the filter of a request.
func filterOf(r *http.Request) (*FlowFilter, error) {
	f := &FlowFilter{
		Client: r.FormValue("client"), Frontend: r.FormValue("frontend"), Endpoint: r.FormValue("endpoint"),
		Service: r.FormValue("service"), State: r.FormValue("state"), Protocol: r.FormValue("protocol"),
	}
	for name, to := range map[string]*time.Duration{"minAge": &f.MinAge, "maxAge": &f.MaxAge, "minIdle": &f.MinIdle} {
		s := r.FormValue(name)
		if s == "" {
			continue
		}
		d, err := time.ParseDuration(s)
		if err != nil || d < 0 {
			return nil, fmt.Errorf("%s: expected a duration such as 90s, got %q", name, s)
		}
		*to = d
	}
	return f, nil
}

// Matcher compiles the filter. The error names the field.
func (f *FlowFilter) Matcher() (*FlowMatcher, error) {
	m := &FlowMatcher{Filter: *f, Service: f.Service, state: strings.ToLower(f.State)}
	for name, to := range map[string]struct {
		text string
		to   *place
	}{"client": {f.Client, &m.client}, "frontend": {f.Frontend, &m.frontend}, "endpoint": {f.Endpoint, &m.endpoint}} {
		if err := to.to.parse(to.text); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	switch p := strings.ToUpper(f.Protocol); p {
	case "", "TCP", "UDP", "SCTP":
		m.Filter.Protocol = p
	default:
		return nil, fmt.Errorf("protocol: must be TCP, UDP or SCTP, is %q", f.Protocol)
	}
	return m, nil
}

// FlowMatcher is a compiled FlowFilter.
type FlowMatcher struct {
	Filter                     FlowFilter
	client, frontend, endpoint place
	Service                    string // "": any
	state                      string
}

// Any reports whether every flow matches.
func (m *FlowMatcher) Any() bool { return m.Filter == FlowFilter{} }

// Tuple reports whether a flow's addresses match.
func (m *FlowMatcher) Tuple(client, frontend, endpoint netip.AddrPort) bool {
	return m.client.has(client) && m.frontend.has(frontend) && m.endpoint.has(endpoint)
}

// Times reports whether a flow's age and the time since the last packet match.
func (m *FlowMatcher) Times(age, idle time.Duration) bool {
	f := &m.Filter
	return age >= f.MinAge && (f.MaxAge == 0 || age <= f.MaxAge) && idle >= f.MinIdle
}

// State reports whether a flow's state matches.
func (m *FlowMatcher) State(state string) bool { return strings.Contains(state, m.state) }

// Rest reports whether a flow's Service and state match.
func (m *FlowMatcher) Rest(service, state string) bool {
	return (m.Service == "" || m.Service == service) && m.State(state)
}

// First is the address and port, of a range of ports the first.
func (f *Frontend) First() (netip.AddrPort, error) {
	first, _, _ := strings.Cut(f.Address, "-") // no address has one
	return netip.ParseAddrPort(first)
}

// Last is the last port of a range of ports, 0 for a single port.
func (f *Frontend) Last() uint16 {
	_, last, _ := strings.Cut(f.Address, "-")
	n, _ := strconv.ParseUint(last, 10, 16) // not a number: none
	return uint16(n)
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
		if ap.Port() == 0 { // which stands for any here
			return fmt.Errorf("port 0 is no port, in %q: ADDRESS alone has every port", s)
		}
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
