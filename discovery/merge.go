package discovery

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"

	"github.com/weirlb/weir/topology"
)

// candidate is a claim that an endpoint exists. It has no pointers and
// compares numbers: most of the work of a change in a large Service is to
// sort these.
type candidate struct {
	hi, lo        uint64 // the address
	source, index int32  // which source, and where in it
	port          uint16
	bits          uint8 // of the address: 32 or 128
	rank          uint8 // of the state
}

// merge makes the Service that svc's objects add up to, without endpoints if nothing here
// needs them.
func (s *Store) merge(svc *service) *Service {
	sp, served := &svc.spec.svc, svc.use.Endpoints && svc.refusal() == ""
	s.makeNamed(svc, served && !sp.Headless && !sp.ExternalName && sp.Unsupported == "")
	if served {
		return s.mergeEndpoints(svc)
	}
	svc.matches = nil
	out := svc.spec.svc
	out.Mirrored = svc.mirrored != nil
	out.Unused, out.Refused = !svc.use.Endpoints, svc.refusal()
	out.Errors, out.Warnings = svc.problems()
	return &out
}

// mergeEndpoints is merge with endpoints.
func (s *Store) mergeEndpoints(svc *service) *Service {
	out := svc.spec.svc
	out.Ports = slices.Clone(out.Ports)
	out.OfNodes = s.nodes.owned(&out)
	out.Mirrored = svc.mirrored != nil
	var otherFamily Families
	out.Errors, out.Warnings = svc.problems()
	if !out.Headless && !out.ExternalName {
		m := merging{store: s, sources: svc.sources(), matches: svc.matches, warned: map[*node]bool{}}
		if m.matches == nil {
			m.matches = matchPorts(out.Ports, m.sources)
		}
		svc.matches = nil
		for i := range out.Ports {
			otherFamily |= m.port(&out, i)
			svc.spec.annotations.weights.apply(out.Ports[i].Endpoints)
		}
		out.noSlicesFault(&m)
		out.portNameFaults(&m)
		out.hintsFault(svc.spec.distribution)
		out.checkPortWarning()
	}
	if e := out.modeConflict(); e != "" {
		out.Errors = append(out.Errors, e)
	}
	if otherFamily != 0 {
		kind := "IPv6 endpoints"
		if otherFamily == IPv4 {
			kind = "IPv4 endpoints"
		}
		out.Warnings = append(out.Warnings, out.otherFamilyWarning(kind))
	}
	return &out
}

// sources are the slices that count for svc, by name: EndpointSlices, or else mirrored
// slices.
func (svc *service) sources() []*sliceData {
	if svc.mirrored != nil {
		return svc.mirrored
	}
	out := make([]*sliceData, 0, len(svc.slices))
	for _, d := range svc.slices {
		out = append(out, d)
		if d.named != nil {
			out = append(out, d.named.made...)
		}
	}
	slices.SortFunc(out, func(a, b *sliceData) int { return strings.Compare(a.name, b.name) })
	return out
}

// merging is a Service being merged.
type merging struct {
	store   *Store
	sources []*sliceData
	matches [][]match // by Service port
	warned  map[*node]bool
	refused int // addresses of names
}

// match is the port of a source that a Service port has endpoints from.
type match struct {
	source int32
	port   uint16
}

// portID is how ports of Services and slices match; the number may differ from slice to slice.
type portID struct{ name, protocol string }

// matchPorts returns for each Service port the matching ports of the sources, in their order. It
// reads each port once: a Service may have thousands.
func matchPorts(ports []Port, sources []*sliceData) [][]match {
	index := make(map[portID]int, len(ports))
	for i := range ports {
		index[portID{ports[i].Name, ports[i].Protocol}] = i
	}
	out := make([][]match, len(ports))
	for n, d := range sources {
		for _, sp := range d.ports {
			i, ok := index[sp.portID]
			if !ok {
				continue
			}
			if list := out[i]; len(list) == 0 || list[len(list)-1].source != int32(n) {
				out[i] = append(list, match{int32(n), sp.port})
			}
		}
	}
	return out
}

// port gives a Service port the union of the sources' endpoints, each address and port once,
// sorted. It returns the families of endpoints that were left out because the Service is of
// another family.
func (m *merging) port(svc *Service, i int) (otherFamily Families) {
	s, all := m.store, m.store.scratch[:0]
	for _, x := range m.matches[i] {
		all = m.sources[x.source].candidates(all, x.source, x.port)
	}
	if len(all) > 0 {
		if all = m.withoutRefused(svc, all); len(all) == 0 && m.refused <= maxErrors {
			m.refused++
			svc.Warnings = append(svc.Warnings, fmt.Sprintf("port %q has no endpoint: all addresses that its names lead to are refused", svc.Ports[i].Name))
		}
	}
	if svc.Families != 0 && svc.Families != IPv4|IPv6 {
		all = slices.DeleteFunc(all, func(c candidate) bool {
			f := c.family()
			if !m.sources[c.source].byName { // of a name there are addresses of both families
				otherFamily |= f &^ svc.Families
			}
			return f&svc.Families == 0
		})
	}
	slices.SortFunc(all, compareCandidates)
	all = slices.CompactFunc(all, func(a, b candidate) bool {
		return a.hi == b.hi && a.lo == b.lo && a.port == b.port && a.bits == b.bits
	})
	out := make([]topology.Endpoint, len(all))
	for i := range all {
		e := &m.sources[all[i].source].endpoints[all[i].index]
		if nd := s.nodes.resolve(&out[i], e, all[i].port); nd.fault != "" && !m.warned[nd] {
			m.warned[nd] = true
			svc.Warnings = append(svc.Warnings, "Node "+nd.name+": "+nd.fault)
		}
		if w := m.sources[all[i].source].weight; w != 0 {
			out[i].Weight = w
		}
	}
	s.scratch = all[:0]
	svc.Ports[i].Endpoints = out
	if _, none := s.opts.Names.(NoNames); none {
		id := portID{svc.Ports[i].Name, svc.Ports[i].Protocol}
		svc.Ports[i].Unresolved = slices.ContainsFunc(m.sources, func(d *sliceData) bool { return d.named.has(id) && len(d.named.hosts) > 0 })
	}
	return otherFamily
}

// withoutRefused leaves out the addresses that no name may have.
func (m *merging) withoutRefused(svc *Service, all []candidate) []candidate {
	return slices.DeleteFunc(all, func(c candidate) bool {
		d := m.sources[c.source]
		if !d.byName {
			return false
		}
		addr := d.endpoints[c.index].addr
		reason := m.store.refusesNamed(addr)
		if reason != "" {
			name, _, _ := strings.Cut(d.name, " ")
			text := fmt.Sprintf("EndpointSlice %s/%s: a name leads to %s, which is refused: %s", svc.Name.Namespace, name, addr, reason)
			if m.refused < maxErrors && !slices.Contains(svc.Warnings, text) {
				m.refused++
				svc.Warnings = append(svc.Warnings, text)
			}
		}
		return reason != ""
	})
}

// family is the candidate's.
func (c *candidate) family() Families {
	if c.bits == 32 {
		return IPv4
	}
	return IPv6
}

// candidates adds those of a slice.
func (d *sliceData) candidates(to []candidate, source int32, port uint16) []candidate {
	for i := range d.endpoints {
		e := &d.endpoints[i]
		a := e.addr.As16()
		to = append(to, candidate{
			hi: binary.BigEndian.Uint64(a[:8]), lo: binary.BigEndian.Uint64(a[8:]),
			source: source, index: int32(i), port: port,
			bits: uint8(e.addr.BitLen()), rank: uint8(e.state.rank()),
		})
	}
	return to
}

// compareCandidates sorts by address and port; of equal claims the preferred claim comes
// first. The slice's name and the place in it make the choice independent of the order of
// events.
func compareCandidates(a, b candidate) int {
	switch {
	case a.bits != b.bits:
		return cmp.Compare(a.bits, b.bits)
	case a.hi != b.hi:
		return cmp.Compare(a.hi, b.hi)
	case a.lo != b.lo:
		return cmp.Compare(a.lo, b.lo)
	case a.port != b.port:
		return cmp.Compare(a.port, b.port)
	case a.rank != b.rank:
		return cmp.Compare(b.rank, a.rank)
	case a.source != b.source:
		return cmp.Compare(a.source, b.source)
	}
	return cmp.Compare(a.index, b.index)
}

// resolve fills in an endpoint with the data of the node, and returns the node.
func (ns *nodes) resolve(out *topology.Endpoint, e *sliceEndpoint, port uint16) *node {
	nd, inferred := ns.locate(e)
	out.AddrPort = netip.AddrPortFrom(e.addr, port)
	out.Ready = e.state&ready != 0
	out.Serving = e.state&serving != 0
	out.Terminating = e.state&terminating != 0
	out.NodeName, out.Inferred = nd.name, inferred
	out.OfNode = ns.byAddr.owner(e.addr) != nil
	out.Weight = nd.weight
	// As for labels: a slice may be older than the Node's label.
	out.Zone = nd.labels[topology.LabelZone]
	if out.Zone == "" {
		out.Zone = e.zone
	}
	if e.hints != nil {
		out.HintZones, out.HintNodes = e.hints.zones, e.hints.nodes
	}
	out.Labels = nd.labelsOf(e)
	return nd
}

// problems gathers the errors and warnings of the Service and of all that
// belongs to it.
func (svc *service) problems() (errs, warns []string) {
	errs = slices.Clone(svc.spec.svc.Errors)
	warns = slices.Concat(svc.spec.svc.Warnings, svc.warnings)
	for _, name := range slices.Sorted(maps.Keys(svc.slices)) {
		d := svc.slices[name]
		errs = append(errs, d.errors...)
		warns = append(warns, d.warnings...)
		if d.named != nil {
			warns = append(warns, d.named.warnings...)
		}
	}
	if len(svc.slices) == 0 && svc.endpoints != nil && svc.mirrored == nil {
		ep := svc.endpoints
		warns = append(warns, "Endpoints "+ep.Namespace+"/"+ep.Name+": not mirrored: "+svc.notMirroredReason())
	}
	for _, d := range svc.mirrored {
		errs = append(errs, d.errors...)
	}
	return errs, warns
}

// equal reports whether two Services mean the same to a consumer.
func (a *Service) equal(b *Service) bool {
	if !a.sameSpec(b) || len(a.Ports) != len(b.Ports) {
		return false
	}
	for i := range a.Ports {
		p, q := &a.Ports[i], &b.Ports[i]
		if !p.sameSpec(q) || !slices.EqualFunc(p.Endpoints, q.Endpoints, sameEndpoint) {
			return false
		}
	}
	return true
}

// sameSpec compares all but the ports.
func (a *Service) sameSpec(b *Service) bool {
	return a.Name == b.Name && a.Created == b.Created && a.PolicyChanged == b.PolicyChanged && a.AffinitySeconds == b.AffinitySeconds &&
		a.HealthCheckNodePort == b.HealthCheckNodePort && a.LoadBalancerClass == b.LoadBalancerClass &&
		a.Options.equal(b.Options) && a.Headless == b.Headless && a.ExternalName == b.ExternalName &&
		a.Families == b.Families && a.Unsupported == b.Unsupported && a.Mirrored == b.Mirrored &&
		a.Unused == b.Unused && a.Refused == b.Refused && maps.Equal(a.Labels, b.Labels) &&
		slices.Equal(a.ClusterIPs, b.ClusterIPs) && slices.Equal(a.LoadBalancerIPs, b.LoadBalancerIPs) &&
		slices.Equal(a.ExternalIPs, b.ExternalIPs) && slices.Equal(a.OfNodes, b.OfNodes) && slices.Equal(a.Unserved, b.Unserved) && slices.Equal(a.SourceRanges, b.SourceRanges) &&
		slices.Equal(a.Errors, b.Errors) && slices.Equal(a.Warnings, b.Warnings) && slices.Equal(a.Faults, b.Faults) &&
		samePolicy(&a.Policy, &b.Policy)
}

func samePolicy(a, b *topology.Policy) bool {
	return a.InternalLocal == b.InternalLocal && a.ExternalLocal == b.ExternalLocal &&
		a.External == b.External && a.Distribution == b.Distribution &&
		a.MinReadyPercent == b.MinReadyPercent && slices.Equal(a.TopologyKeys, b.TopologyKeys)
}

// sameSpec compares all but the endpoints.
func (p *Port) sameSpec(q *Port) bool {
	return p.Name == q.Name && p.Protocol == q.Protocol && p.Port == q.Port && p.NodePort == q.NodePort &&
		p.Unresolved == q.Unresolved
}

func sameEndpoint(a, b topology.Endpoint) bool {
	return a.AddrPort == b.AddrPort && a.Ready == b.Ready && a.Serving == b.Serving &&
		a.Terminating == b.Terminating && a.NodeName == b.NodeName && a.Zone == b.Zone &&
		a.Inferred == b.Inferred && a.OfNode == b.OfNode && a.Weight == b.Weight && slices.Equal(a.HintZones, b.HintZones) &&
		slices.Equal(a.HintNodes, b.HintNodes) && sameLabels(a.Labels, b.Labels)
}

// sameLabels looks at the maps themselves first: endpoints share them.
func sameLabels(a, b map[string]string) bool {
	return reflect.ValueOf(a).Pointer() == reflect.ValueOf(b).Pointer() || maps.Equal(a, b)
}
