// Package changes says as events of Weir and of Kubernetes what a publication changes: Services,
// endpoints, and the tier in use.
package changes

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/weirlb/weir/cmd/weir/endpointhealth"
	"github.com/weirlb/weir/cmd/weir/event"
	"github.com/weirlb/weir/cmd/weir/problem"
	"github.com/weirlb/weir/cmd/weir/source"
	"github.com/weirlb/weir/discovery"
	"github.com/weirlb/weir/discovery/kube"
	"github.com/weirlb/weir/lb"
	"github.com/weirlb/weir/lb/header"
	"github.com/weirlb/weir/topology"
)

// eventsPerUpdate is how many endpoints of a Service have an event each in an update. More are
// an event together.
const eventsPerUpdate = 4

// Cause is why a publication changes tiers.
type Cause struct {
	// text is the cause where no endpoint of the Service has changed.
	text      string
	endpoints map[string][]endpointChange // by Service
}

// endpointChange is a change of an endpoint of some ports of a Service.
type endpointChange struct {
	kind    event.Kind
	address string
	text    string // follows the address
	ports   []string
	own     string // not "": the identity of an event of its own, however many there are
}

// is the state or the change, such as ready or removed.
func (c *endpointChange) is() string {
	is, _, _ := strings.Cut(c.text, ",")
	return is
}

// NewCause is a cause that is no change of endpoints.
func NewCause(text string) *Cause { return &Cause{text: text} }

// HealthCause is a change of the health of endpoints.
func HealthCause(list []endpointhealth.Change) *Cause {
	c := &Cause{text: "the health of endpoints has changed", endpoints: map[string][]endpointChange{}}
	for _, x := range list {
		name, address := x.Service.String(), x.At.String()
		begin, _, _ := strings.Cut(x.Text, " ") // a failure is no repetition of a success
		c.endpoints[name] = append(c.endpoints[name], endpointChange{kind: event.EndpointChanged, address: address, text: x.Text, own: address + " " + begin})
	}
	return c
}

// CauseOf compares the Services of an update with those before. first is set where there was no
// update before.
func CauseOf(up *discovery.Update, first bool, before func(discovery.ServiceName) *discovery.Service) *Cause {
	c := &Cause{text: "the Service has changed", endpoints: map[string][]endpointChange{}}
	if up.Node != nil {
		c.text = "the Node or the Service has changed"
	}
	if first {
		return c // all is new
	}
	for _, svc := range up.Put {
		if old := before(svc.Name); old != nil {
			if list := endpointChanges(old, svc); len(list) > 0 {
				c.endpoints[svc.Name.String()] = list
			}
		}
	}
	return c
}

// endpointChanges are the changes by address and kind.
func endpointChanges(old, now *discovery.Service) []endpointChange {
	var out []endpointChange
	type identity struct {
		kind event.Kind
		addr netip.Addr
		text string
	}
	index := map[identity]int{}
	add := func(p *discovery.Port, e *topology.Endpoint, kind event.Kind, text string) {
		id := identity{kind, e.AddrPort.Addr(), text}
		at, known := index[id]
		if !known {
			at = len(out)
			index[id] = at
			out = append(out, endpointChange{kind: kind, address: id.addr.String(), text: text})
		}
		out[at].ports = append(out[at].ports, portText(p.Name, p.Port, p.Protocol))
	}
	type port struct {
		number   uint16
		protocol string
	}
	before := make(map[port][]topology.Endpoint, len(old.Ports))
	for i := range old.Ports {
		before[port{old.Ports[i].Port, old.Ports[i].Protocol}] = old.Ports[i].Endpoints
	}
	for i := range now.Ports {
		p := &now.Ports[i]
		mergeEndpoints(before[port{p.Port, p.Protocol}], p.Endpoints, func(was, is *topology.Endpoint) {
			switch {
			case was == nil:
				add(p, is, event.EndpointAdded, "added, "+is.State()+place(is))
			case is == nil:
				add(p, was, event.EndpointRemoved, "removed, was "+was.State())
			case was.State() != is.State():
				add(p, is, event.EndpointChanged, is.State()+", was "+was.State())
			}
		})
	}
	return out
}

// mergeEndpoints calls f for each address of two sorted lists.
func mergeEndpoints(before, now []topology.Endpoint, f func(was, is *topology.Endpoint)) {
	for len(before) > 0 || len(now) > 0 {
		order := 0
		switch {
		case len(before) == 0:
			order = 1
		case len(now) == 0:
			order = -1
		default:
			order = before[0].AddrPort.Compare(now[0].AddrPort)
		}
		switch {
		case order < 0:
			f(&before[0], nil)
		case order > 0:
			f(nil, &now[0])
		default:
			f(&before[0], &now[0])
		}
		if order <= 0 {
			before = before[1:]
		}
		if order >= 0 {
			now = now[1:]
		}
	}
}

func place(e *topology.Endpoint) string {
	s := ""
	if e.NodeName != "" {
		s += ", node " + e.NodeName
	}
	if e.Zone != "" {
		s += ", zone " + e.Zone
	}
	return s
}

// portText is as "http 80/TCP".
func portText(name string, port uint16, protocol string) string {
	return strings.TrimSpace(fmt.Sprintf("%s %d/%s", name, port, protocol))
}

// Teller has the places where changes are told.
type Teller struct {
	Events *event.Ring
	Source source.Source // may record Events of Kubernetes
}

// Publication adds the events of a publication on a node.
func (t *Teller) Publication(changes *Published, c *Cause, node *topology.Node) {
	for _, name := range changes.added {
		t.Events.Add(event.New{Kind: event.ServiceAdded, Service: name, Text: "the Service is served"})
	}
	for _, name := range changes.removed {
		t.Events.Add(event.New{Kind: event.ServiceRemoved, Service: name, Text: "the Service is no longer served"})
	}
	for name, list := range c.endpoints {
		t.endpointEvents(name, list)
	}
	t.tierEvents(changes.tiers, c, node)
}

// endpointEvents adds those of a Service. A change to another state is no repetition of the one before.
func (t *Teller) endpointEvents(service string, list []endpointChange) {
	type change struct {
		kind event.Kind
		is   string
	}
	groups := map[change][]endpointChange{}
	var order []change
	for _, c := range list {
		if c.own != "" {
			t.Events.Add(event.New{Kind: c.kind, Service: service, Identity: c.own, Text: "endpoint " + c.address + " " + c.text})
			continue
		}
		to := change{c.kind, c.is()}
		if groups[to] == nil {
			order = append(order, to)
		}
		groups[to] = append(groups[to], c)
	}
	for _, to := range order {
		list := groups[to]
		if len(list) > eventsPerUpdate {
			var names []string
			for _, c := range list {
				names = append(names, c.address+" "+to.is)
			}
			t.Events.Add(event.New{Kind: to.kind, Service: service, Identity: "many " + to.is, Text: fmt.Sprintf("%d endpoints: %s", len(list), event.Some(names))})
			continue
		}
		for _, c := range list {
			t.Events.Add(event.New{
				Kind: to.kind, Service: service, Identity: c.address + " " + to.is,
				Text: fmt.Sprintf("endpoint %s %s; ports %s", c.address, c.text, event.Some(c.ports)),
			})
		}
	}
}

// tierEvents adds an event for all ports of a Service that change between the same tiers.
func (t *Teller) tierEvents(list []tierChange, c *Cause, node *topology.Node) {
	type identity struct{ service, from, to string }
	groups := map[identity][]tierChange{}
	var order []identity
	for _, x := range list {
		id := identity{x.service, x.from, x.to}
		if groups[id] == nil {
			order = append(order, id)
		}
		groups[id] = append(groups[id], x)
	}
	for _, id := range order {
		group := groups[id]
		first := group[0]
		severity := event.Note
		switch topology.Tier(first.to) {
		case topology.TierNone:
			severity = event.Error
		case topology.TierTerminating:
			severity = event.Warning
		}
		scope := scopeOf(group)
		t.Events.Add(event.New{
			Kind: event.TierChanged, Severity: severity, Service: first.service, Identity: scope + first.from + ">" + first.to,
			Text: fmt.Sprintf("tier %s, was %s; %s, because %s", first.to, first.from, scope, c.of(first.service)),
		})
		t.tellTier(first, scope, severity, c, node)
	}
}

// tellTier has a Kubernetes Event recorded of another tier in use, where the source can do that.
// The nodes of a zone see the same, but for the order in which endpoints change.
func (t *Teller) tellTier(x tierChange, scope string, severity event.Severity, c *Cause, node *topology.Node) {
	src, can := t.Source.(interface {
		Tell(name discovery.ServiceName, c kube.Change)
	})
	namespace, name, ok := strings.Cut(x.service, "/")
	if !can || !ok {
		return
	}
	zone := "without a zone"
	if z := node.Labels["topology.kubernetes.io/zone"]; z != "" {
		zone = "of zone " + z
	}
	src.Tell(discovery.ServiceName{Namespace: namespace, Name: name}, kube.Change{
		Reason: "TierChanged", Warning: severity != event.Note,
		Identity: strings.Join([]string{x.from, x.to, zone, scope}, "|"),
		Text:     fmt.Sprintf("nodes %s: tier %s, was %s; %s, because %s", zone, x.to, x.from, scope, c.of(x.service)),
	})
}

// scopeOf names ports, families and scopes of changes of a Service.
func scopeOf(list []tierChange) string {
	var ports, families, scopes []string
	add := func(to *[]string, s string) {
		if n := len(*to); n == 0 || (*to)[n-1] != s && (to == &ports || !slices.Contains(*to, s)) {
			*to = append(*to, s)
		}
	}
	slices.SortStableFunc(list, func(a, b tierChange) int {
		return cmp.Or(cmp.Compare(a.key.port, b.key.port), cmp.Compare(a.key.proto, b.key.proto))
	})
	for _, x := range list {
		add(&ports, portText("", x.key.port, header.ProtocolName(x.key.proto)))
		add(&families, x.key.family())
		add(&scopes, x.key.scope())
	}
	return "ports " + event.Some(ports) + ", " + strings.Join(families, " and ") + ", " + strings.Join(scopes, " and ")
}

// of is the cause of a change of a Service.
func (c *Cause) of(service string) string {
	var names []string
	for _, e := range c.endpoints[service] {
		names = append(names, e.address+" "+e.is())
	}
	if len(names) == 0 {
		return c.text
	}
	return event.Some(names)
}

// problemKinds are the events of problems that have a kind of their own.
var problemKinds = map[problem.Kind][2]event.Kind{
	problem.APIServer:     {event.SourceLost, event.SourceBack},
	problem.InterfaceGone: {event.InterfaceAbsent, event.InterfaceBack},
	problem.WorkerStalled: {event.WorkerStalled, event.WorkerBack},
}

// Problem adds the event of a problem. The registry writes the log.
func (t *Teller) Problem(p problem.Problem, ended bool) {
	kinds, ok := problemKinds[p.Kind]
	if !ok {
		kinds = [2]event.Kind{event.ProblemBegan, event.ProblemEnded}
	}
	n := event.New{Kind: kinds[0], Severity: event.Severity(p.Severity), Identity: string(p.Kind) + p.Field, Text: p.Reason, Logged: true}
	if p.Field != "" {
		n.Text = p.Field + ": " + n.Text
	}
	if ended {
		n.Kind, n.Severity, n.Text = kinds[1], event.Note, "no longer: "+n.Text
	}
	if namespace, name, ok := problem.ServiceOf(p.Object); ok {
		n.Service = namespace + "/" + name
	} else {
		n.Object = p.Object
	}
	t.Events.Add(n)
}

// Refusals counts connections that were refused for want of a SNAT port or of room.
type Refusals struct{ full, noPort uint64 }

// Follow adds events for the connections that were refused since the last call, every so often.
func (r *Refusals) Follow(s *lb.Status, events *event.Ring, every time.Duration) {
	noPort, full := s.Refused()
	for _, x := range []struct {
		kind event.Kind
		last *uint64
		now  uint64
		text string
	}{
		{event.FlowTableFull, &r.full, full, "%d new connections were refused in %s: the flow table is full"},
		{event.SNATPortsInUse, &r.noPort, noPort, "%d new connections were refused in %s: all SNAT ports are in use"},
	} {
		if n := x.now - min(*x.last, x.now); n > 0 {
			events.Add(event.New{Kind: x.kind, Severity: event.Error, Times: n, Text: fmt.Sprintf(x.text, n, every)})
		}
		*x.last = x.now
	}
}
