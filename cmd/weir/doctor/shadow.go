package doctor

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/cmd/weir/doctor/kubeproxy"
	"github.com/weirlb/weir/cmd/weir/explain"
	"github.com/weirlb/weir/cmd/weir/translate"
)

// Agreement is the result of the comparison of a frontend.
type Agreement string

// Agreements.
const (
	Same          Agreement = "same"
	Different     Agreement = "different"
	Drained       Agreement = "drained"         // weir drain is the reason of all differences
	OnlyKubeProxy Agreement = "only-kube-proxy" // Weir does not serve the frontend
	OnlyWeir      Agreement = "only-weir"       // kube-proxy does not
)

// Comparison compares the rules of a mode of kube-proxy with Weir's choice.
type Comparison struct {
	Mode      string     `json:"mode"` // nftables, iptables or ipvs
	Frontends []Compared `json:"frontends"`
}

// Compared is a frontend with the endpoints of both.
type Compared struct {
	Frontend  string    `json:"frontend"` // address:port; a node port of kube-proxy is :port
	Protocol  string    `json:"protocol"`
	Kind      string    `json:"kind,omitempty"`    // as Weir has it
	Service   string    `json:"service,omitempty"` // namespace/name
	Agreement Agreement `json:"agreement"`
	// Reason is why Weir does not serve the frontend, as far as it is known.
	Reason        string   `json:"reason,omitempty"`
	Same          []string `json:"same"`
	OnlyKubeProxy []Choice `json:"onlyKubeProxy,omitempty"`
	OnlyWeir      []Choice `json:"onlyWeir,omitempty"`
}

// Choice is an endpoint, with Weir's reason to use it or not.
type Choice struct {
	Endpoint string `json:"endpoint"`
	Reason   string `json:"reason"`
}

// count is the number of frontends of an agreement.
func (c *Comparison) count(a Agreement) (n int) {
	for i := range c.Frontends {
		if c.Frontends[i].Agreement == a {
			n++
		}
	}
	return n
}

// first is the first frontend of an agreement, of which there is any.
func (c *Comparison) first(a Agreement) *Compared {
	return &c.Frontends[slices.IndexFunc(c.Frontends, func(f Compared) bool { return f.Agreement == a })]
}

// reasons explain Weir's choice: of a Service, by name; nil if it is not known.
type reasons func(service string) *explain.Service

// compare compares the rules of a mode with Weir's frontends. kube-proxy knows no drained endpoints.
func compare(r *kubeproxy.Rules, frontends []api.Frontend, drained translate.DrainedSet, why reasons) Comparison {
	out := Comparison{Mode: r.Mode, Frontends: []Compared{}}
	met, single := map[kubeproxy.Frontend]bool{}, singlePorts(frontends)
	for i := range frontends {
		f := &frontends[i]
		to, err := f.First()
		if err != nil {
			continue
		}
		if f.Last() != 0 {
			to = rangePort(r, f, to, single, why)
		}
		key, target, ok := r.Find(to, f.Protocol, f.Kind == "NodePort")
		met[key] = true
		c := Compared{Frontend: f.Address, Protocol: f.Protocol, Kind: f.Kind, Service: f.Service, Same: []string{}}
		byDrain := c.take(f, target.Endpoints, drained, why)
		switch {
		case len(c.OnlyKubeProxy)+len(c.OnlyWeir) == 0:
			c.Agreement = Same // also where neither has an endpoint
		case !ok:
			c.Agreement = OnlyWeir
		case byDrain:
			c.Agreement = Drained
		default:
			c.Agreement = Different
		}
		out.Frontends = append(out.Frontends, c)
	}
	for f, target := range r.Frontends {
		// Cluster IPs stay with kube-proxy: they are not for clients outside.
		if !met[f] && target.External {
			out.Frontends = append(out.Frontends, onlyKubeProxy(f, target))
		}
	}
	slices.SortStableFunc(out.Frontends, func(a, b Compared) int {
		return cmp.Or(strings.Compare(a.Service, b.Service), strings.Compare(a.Frontend, b.Frontend), strings.Compare(a.Protocol, b.Protocol))
	})
	return out
}

// protocolPort is an address and port of a protocol.
type protocolPort struct {
	netip.AddrPort
	protocol string
}

// singlePorts are the frontends that have a single port.
func singlePorts(frontends []api.Frontend) map[protocolPort]bool {
	out := map[protocolPort]bool{}
	for i := range frontends {
		if to, err := frontends[i].First(); err == nil && frontends[i].Last() == 0 {
			out[protocolPort{to, frontends[i].Protocol}] = true
		}
	}
	return out
}

// rangePort is the port of a range that kube-proxy may have, which knows that of the Service alone. If the Service
// is not known it is the first that is no frontend of Weir's by itself, and else the first of the range.
func rangePort(r *kubeproxy.Rules, f *api.Frontend, first netip.AddrPort, single map[protocolPort]bool, why reasons) netip.AddrPort {
	if p := portOf(why(f.Service), f); p.Port != 0 {
		return netip.AddrPortFrom(first.Addr(), p.Port)
	}
	var found netip.AddrPort
	for k := range r.Frontends {
		at := netip.AddrPortFrom(k.Addr, k.Port)
		if k.Addr == first.Addr() && k.Protocol == f.Protocol && k.Port >= first.Port() && k.Port <= f.Last() && !single[protocolPort{at, k.Protocol}] &&
			(!found.IsValid() || k.Port < found.Port()) {
			found = at
		}
	}
	if !found.IsValid() {
		return first
	}
	return found
}

// unknownEndpoint is the reason for endpoints that the Service does not have.
const unknownEndpoint = "Weir knows no such endpoint: the view of kube-proxy is another"

// byDrain is the reason for drained endpoints that only kube-proxy uses.
const byDrain = "drained by weir drain"

// take sorts the endpoints of both into those in common and the others, and reports whether drains
// are the reason for the others: kube-proxy uses drained endpoints, and Weir uses endpoints of
// another tier only where no endpoint of kube-proxy's is left.
func (c *Compared) take(f *api.Frontend, theirs []netip.AddrPort, drained translate.DrainedSet, why reasons) bool {
	own := map[string]bool{}
	for _, e := range f.Endpoints {
		own[e.Address] = true
	}
	known := map[string]bool{}
	var port *explain.Port
	look := func() *explain.Port { // most frontends are the same, and need no reasons
		if port == nil {
			port = portOf(why(f.Service), f)
		}
		return port
	}
	all, others := len(theirs) > 0, false
	for _, ap := range theirs {
		e, gone := ap.String(), drained.Has(ap)
		known[e] = true
		all = all && gone
		switch {
		case own[e]:
			c.Same = append(c.Same, e)
		case gone:
			c.OnlyKubeProxy = append(c.OnlyKubeProxy, Choice{e, byDrain})
		default:
			others = true
			c.OnlyKubeProxy = append(c.OnlyKubeProxy, Choice{e, cmp.Or(reasonOf(look(), f, e), unknownEndpoint)})
		}
	}
	for _, e := range f.Endpoints {
		if !known[e.Address] {
			c.OnlyWeir = append(c.OnlyWeir, Choice{e.Address, reasonOf(look(), f, e.Address)})
		}
	}
	return !others && (all || len(c.OnlyWeir) == 0)
}

func onlyKubeProxy(f kubeproxy.Frontend, target kubeproxy.Target) Compared {
	c := Compared{Frontend: fmt.Sprintf(":%d", f.Port), Protocol: f.Protocol, Agreement: OnlyKubeProxy, Same: []string{},
		Reason: "Weir has no such frontend: see weir explain, and nodePortAddresses, for node ports"}
	if f.Addr.IsValid() {
		c.Frontend = netip.AddrPortFrom(f.Addr, f.Port).String()
		c.Reason = "Weir has no such frontend: see weir explain"
	}
	for _, ap := range target.Endpoints {
		c.OnlyKubeProxy = append(c.OnlyKubeProxy, Choice{ap.String(), c.Reason})
	}
	return c
}

// portOf is the Service port of a frontend. An empty port stands for an unknown one.
func portOf(s *explain.Service, f *api.Frontend) *explain.Port {
	to, err := f.First()
	if s == nil || err != nil {
		return &explain.Port{}
	}
	for i := range s.Ports {
		p := &s.Ports[i]
		number := p.Port
		if f.Kind == "NodePort" {
			number = p.NodePort
		}
		if number >= to.Port() && number <= max(to.Port(), f.Last()) && p.Protocol == f.Protocol {
			return p
		}
	}
	return &explain.Port{}
}

// reasonOf is Weir's reason to use an endpoint or not, "" if it is not known.
func reasonOf(p *explain.Port, f *api.Frontend, endpoint string) string {
	for _, e := range p.Detail {
		if e.Address != endpoint {
			continue
		}
		if e.LocalReason != "" && strings.Contains(f.Tier, "local") {
			return e.LocalReason
		}
		return e.Reason
	}
	return ""
}

// kubeProxy adds a finding for each mode, and keeps the comparisons.
func (p *patient) kubeProxy(ctx context.Context) {
	rules, err := kubeproxy.Read()
	if err != nil {
		p.add(Warning, "kube-proxy", "rules cannot be read: %v", err).mend("run weir doctor as root, in the host's network namespace")
	}
	if len(rules) > 1 {
		var modes []string
		for _, r := range rules {
			modes = append(modes, r.Mode)
		}
		p.add(Warning, "kube-proxy", "there are rules of several modes: %s", strings.Join(modes, ", ")).
			mend("kube-proxy --cleanup, and then start kube-proxy again")
	}
	for i := range rules {
		c := compare(&rules[i], p.frontends, p.drained, p.reasons(ctx))
		p.report.KubeProxy = append(p.report.KubeProxy, c)
		p.judgeComparison(&c)
	}
	if len(rules) == 0 && err == nil {
		p.add(OK, "kube-proxy", "it has no rules on this node")
	}
}

// judgeComparison sums a comparison up.
func (p *patient) judgeComparison(c *Comparison) {
	subject := "kube-proxy (" + c.Mode + ")"
	if n := c.count(OnlyKubeProxy); n > 0 {
		p.add(OK, subject, "frontends for clients outside that only kube-proxy has: %d", n)
	}
	if n := c.count(OnlyWeir); n > 0 {
		p.add(Warning, subject, "frontends that only Weir has: %d; nobody serves them when Weir is away", n).
			mend("kubectl -n kube-system logs -l k8s-app=kube-proxy")
	}
	if n := c.count(Drained); n > 0 {
		f := c.first(Drained)
		p.add(Warning, subject, "frontends of which it would choose endpoints that weir drain drains: %d, such as %s %s of Service %s", n, f.Protocol, f.Frontend, f.Service).
			mend("weir drain shows them; when they are to get new connections: weir drain endpoint ADDRESS --undo")
	}
	switch n := c.count(Different); {
	case n > 0:
		f := c.first(Different)
		p.add(Fault, subject, "frontends for which it would choose other endpoints: %d, such as %s %s of Service %s", n, f.Protocol, f.Frontend, f.Service).
			mend("weir doctor --shadow has the reasons; a stale kube-proxy: kubectl -n kube-system delete pod -l k8s-app=kube-proxy --field-selector spec.nodeName=%s", p.report.Node)
	case c.count(Same) > 0:
		p.add(OK, subject, "frontends for which it would choose the same endpoints: %d", c.count(Same))
	}
}
