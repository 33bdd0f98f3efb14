package discovery

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// NameQuestion asks for the addresses of a host, or for the addresses and ports of a service of it.
type NameQuestion struct {
	Host string // as example.com, without a dot at the end
	// Service is as _http._tcp for the SRV record of the host (RFC 2782), "" for A and AAAA.
	Service string
}

// String is the name that is asked for.
func (q NameQuestion) String() string { return strings.TrimPrefix(q.Service+"."+q.Host, ".") }

// NameAnswer is the last answer to a question.
type NameAnswer struct {
	// Targets are sorted, each once. The port is 0 without a Service.
	Targets []netip.AddrPort
	// Faults are what is wrong with it, in texts that stay the same while they last: the resolver fails, an
	// address is refused.
	Faults []string
}

// Names resolves the names of EndpointSlices. Methods may be called from any goroutine.
type Names interface {
	// Follow keeps the answers to the questions of a slice, in place of those that it had.
	Follow(slice ServiceName, questions []NameQuestion)
	// Answer is the last answer for a namespace, without targets as long as there is none.
	Answer(namespace string, q NameQuestion) NameAnswer
	// Settle waits, after a start and for some seconds at most, until each name has been asked for once:
	// before that endpoints would seem to be removed. It reports whether a start goes on: what has been
	// made of answers before is old then.
	Settle() (starts bool)
}

// NoNames knows nothing of names, for an examination of objects alone.
type NoNames struct{}

// Follow implements Names.
func (NoNames) Follow(ServiceName, []NameQuestion) {}

// Settle implements Names.
func (NoNames) Settle() bool { return false }

// Answer implements Names.
func (NoNames) Answer(string, NameQuestion) NameAnswer {
	return NameAnswer{Faults: []string{"it is resolved by weir run alone"}}
}

// Bounds of a slice: maxQuestions is the number of its names that are resolved, maxMade that of the endpoints
// which their answers may make.
const (
	maxQuestions = 64
	maxMade      = 64 * maxQuestions
)

// MaxNamed is how many endpoints the names of a node may make in all slices, for Limits.Names: as many as 1,024
// names with 64 addresses have.
const MaxNamed = 1 << 16

// namedSlice is the part of an EndpointSlice whose endpoints are names.
type namedSlice struct {
	id        objectName
	ports     []slicePort // 0: that of the SRV record
	questions []NameQuestion
	hosts     []string        // of the endpoints, each once
	endpoints []sliceEndpoint // without addresses and nodes
	nodes     []string        // of the endpoints
	answers   []NameAnswer    // to the questions
	// made are the slices that the answers stand for, with the faults of the answers, of a Service that has
	// room for them. They are to be made anew if stale is true.
	made     []*sliceData
	warnings []string
	stale    bool
}

// names takes a slice of addressType FQDN.
func (p sliceParser) names(d *sliceData, object string, obj *discoveryv1.EndpointSlice) {
	n := &namedSlice{id: objectName{obj.Namespace, d.name}}
	seen, again, second := map[string]bool{}, "", ""
	for i := range obj.Endpoints {
		e := &obj.Endpoints[i]
		at := index("endpoints", i) + ".addresses"
		if len(e.Addresses) == 0 {
			d.refused++
			d.addError(object, at+": Required value: must contain at least 1 address")
			continue
		}
		if addr, ok := ParseAddr(e.Addresses[0]); ok {
			d.refused++
			family := discoveryv1.AddressTypeIPv6
			if addr.Is4() {
				family = discoveryv1.AddressTypeIPv4
			}
			d.addError(object, invalid(at+"[0]", e.Addresses[0], "this is an address: addressType "+string(family)))
			continue
		}
		host := strings.TrimSuffix(strings.ToLower(e.Addresses[0]), ".")
		if errs := validation.IsFullyQualifiedDomainName(field.NewPath(at), host); len(errs) > 0 {
			d.refused++
			d.addError(object, invalid(at+"[0]", e.Addresses[0], "must be a domain name with at least two labels"))
			continue
		}
		if seen[host] {
			if again == "" {
				again = fmt.Sprintf("%s: %s[0]: %s is also the name of an earlier endpoint, which counts", object, at, host)
			}
			continue
		}
		seen[host] = true
		if second == "" {
			second = passedOver(object, e, i)
		}
		n.hosts = append(n.hosts, strings.Clone(host))
		described, node := p.described(e), ""
		if nd := described.node; nd != nil {
			node, described.node = nd.name, nil
			p.nodes.drop(nd) // it is made again with the endpoints
		}
		n.endpoints, n.nodes = append(n.endpoints, described), append(n.nodes, node)
	}
	for _, text := range []string{again, second} {
		if text != "" {
			d.warnings = append(d.warnings, text)
		}
	}
	n.ports, d.ports = d.ports, nil
	if n.ask(); len(n.questions) > maxQuestions {
		n.questions = n.questions[:maxQuestions]
		d.warnings = append(d.warnings, fmt.Sprintf("%s: of a slice at most %d names are resolved", object, maxQuestions))
	}
	d.named = n
}

// has reports whether the slice has a port, number known or not. There may be no slice.
func (n *namedSlice) has(id portID) bool {
	return n != nil && slices.ContainsFunc(n.ports, func(sp slicePort) bool { return sp.portID == id })
}

// ask makes the questions of the slice, in the order of its endpoints, each once.
func (n *namedSlice) ask() {
	seen := map[NameQuestion]bool{}
	for i := range n.ports {
		for j := 0; j < len(n.hosts) && len(n.questions) <= maxQuestions; j++ {
			if q := (NameQuestion{n.hosts[j], n.ports[i].service()}); !seen[q] {
				seen[q] = true
				n.questions = append(n.questions, q)
			}
		}
	}
}

// service is that of the SRV record which has the port, "" if the port is known.
func (p *slicePort) service() string {
	if p.port != 0 {
		return ""
	}
	return "_" + p.name + "._" + strings.ToLower(p.protocol)
}

// take takes the answers to the questions, and reports whether one is another than before.
func (n *namedSlice) take(names Names) (changed bool) {
	if n.answers == nil {
		n.answers = make([]NameAnswer, len(n.questions))
	}
	for i, q := range n.questions {
		old, answer := &n.answers[i], names.Answer(n.id.Namespace, q)
		if !slices.Equal(old.Targets, answer.Targets) || !slices.Equal(old.Faults, answer.Faults) {
			*old, changed = answer, true
		}
	}
	return changed
}

// count is how many endpoints of a port the answers stand for.
func (n *namedSlice) count(id portID) (sum int) {
	for i := range n.ports {
		if p := &n.ports[i]; p.portID == id {
			sum += n.targets(p.service())
		}
	}
	return min(sum, maxMade)
}

// targets is how many targets the questions of a service have.
func (n *namedSlice) targets(service string) (sum int) {
	for i, q := range n.questions {
		if q.Service == service {
			sum += len(n.answers[i].Targets)
		}
	}
	return sum
}

// countNamed is the number of endpoints that the names of a Service stand for.
func (svc *service) countNamed() (sum int) {
	for _, d := range svc.slices {
		if d.named == nil {
			continue
		}
		all := 0
		for i := range d.named.answers { // ports with a number share the answers, others have their own
			all += len(d.named.answers[i].Targets)
		}
		sum += min(all, maxMade)
	}
	return sum
}

// makeNamed makes the endpoints of the names of a Service which is served, and forgets those of another.
func (s *Store) makeNamed(svc *service, served bool) {
	if len(s.named.slices) == 0 {
		return
	}
	for _, d := range svc.slices {
		n := d.named
		if n == nil || served && !n.stale {
			continue
		}
		old := n.made
		n.made, n.warnings, n.stale = nil, nil, !served
		if served {
			n.make(svc, s)
			s.useNamed(svc, n.made, 1)
		}
		s.useNamed(svc, old, -1) // after the new ones: nodes that both name stay known
	}
}

// make makes the slices that the answers stand for: a slice with the ports that are known, and for each
// port and number of it, of SRV records, another.
func (n *namedSlice) make(svc *service, s *Store) {
	answers := make(map[NameQuestion][]netip.AddrPort, len(n.questions))
	for i, q := range n.questions {
		answer := &n.answers[i]
		answers[q] = nil
		for _, text := range answer.Faults {
			n.warn(fmt.Sprintf("EndpointSlice %s: name %s: %s", n.id, q, text))
		}
		for _, t := range answer.Targets {
			if reason := SpecialAddr(t.Addr()); reason != "" {
				n.warn(fmt.Sprintf("EndpointSlice %s: name %s: %s is refused: %s", n.id, q, t.Addr(), reason))
				continue
			}
			answers[q] = append(answers[q], t)
		}
	}
	var known []slicePort
	free := maxMade
	for i := range n.ports {
		if p := &n.ports[i]; p.port != 0 {
			known = append(known, *p)
		} else {
			free = n.makePorts(svc, s, answers, p.service(), []slicePort{*p}, free)
		}
	}
	if len(known) > 0 {
		free = n.makePorts(svc, s, answers, "", known, free)
	}
	if free < 0 {
		n.warnings = append(n.warnings, fmt.Sprintf("EndpointSlice %s: its names have more than %d endpoints: others are not used", n.id, maxMade))
	}
}

// makePorts makes slices of the answers to the questions of a service, with ports whose number 0 stands for
// that of the answer. It makes free endpoints at most, and returns how many more there may be, -1 if there
// would be more.
func (n *namedSlice) makePorts(
	svc *service, s *Store, answers map[NameQuestion][]netip.AddrPort, service string, ports []slicePort, free int,
) int {
	byPort := map[uint16]*sliceData{}
	for j, host := range n.hosts {
		targets, asked := answers[NameQuestion{host, service}]
		if !asked { // nor are those after it
			break
		}
		for _, t := range targets {
			if free <= 0 {
				return -1
			}
			free--
			d := byPort[t.Port()]
			if d == nil {
				d = &sliceData{svc: svc, name: fmt.Sprintf("%s %s %d", n.id.Name, service, t.Port()), byName: true, ports: slices.Clone(ports)}
				if d.ports[0].port == 0 {
					d.ports[0].port = t.Port()
				}
				byPort[t.Port()] = d
				n.made = append(n.made, d)
			}
			e := n.endpoints[j]
			if e.addr = t.Addr(); n.nodes[j] != "" {
				e.node = s.nodes.named(n.nodes[j])
			}
			d.endpoints = append(d.endpoints, e)
		}
	}
	return free
}

func (n *namedSlice) warn(text string) {
	if len(n.warnings) < maxErrors && !slices.Contains(n.warnings, text) {
		n.warnings = append(n.warnings, text)
	}
}

// same reports whether two slices of names ask the same.
func (n *namedSlice) same(o *namedSlice) bool {
	if n == nil || o == nil {
		return n == o
	}
	return slices.Equal(n.ports, o.ports) && slices.Equal(n.hosts, o.hosts) &&
		slices.Equal(n.endpoints, o.endpoints) && slices.Equal(n.nodes, o.nodes)
}
