package discovery

//lint:file-ignore SA1019 Endpoints are deprecated, and served as long as people write them.

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// maxMirrored is the number of addresses of a subset that the mirroring controller takes.
const maxMirrored = 1000

// annotationLeader marks an Endpoints object that is a lock and no list of
// endpoints.
const annotationLeader = "control-plane.alpha.kubernetes.io/leader"

// mirrors reports whether svc's Endpoints object is served: as the mirroring
// controller has it (KEP-752), for a Service without a selector, unless the
// object is marked otherwise, and only while no slice of any maker is there.
func (svc *service) mirrors() bool {
	return svc.endpoints != nil && svc.spec != nil && len(svc.slices) == 0 && svc.notMirroredReason() == ""
}

// notMirroredReason says why an Endpoints object that would be all there is of
// endpoints is not served, "" when it is.
func (svc *service) notMirroredReason() string {
	ep := svc.endpoints
	if svc.spec.selector {
		return "the Service has a selector, so that its EndpointSlices count, and there are none"
	}
	if _, leader := ep.Annotations[annotationLeader]; leader {
		return "annotation " + annotationLeader + ": it is a lock"
	}
	if ep.Labels[discoveryv1.LabelSkipMirror] == "true" {
		return "label " + discoveryv1.LabelSkipMirror + " is true"
	}
	return ""
}

// mirror makes svc's mirrored slices appear or go as its objects have it.
func (s *Store) mirror(svc *service) {
	want := svc.mirrors()
	if want == (svc.mirrored != nil) {
		return
	}
	if !want {
		s.unmirror(svc)
		return
	}
	svc.mirrored = s.parser.mirrored(svc, s.opts.MaxMirrored)
	for _, d := range svc.mirrored {
		s.stats.RefusedEndpoints += d.refused
		s.nodes.addUse(svc, d, 1)
	}
	s.stats.Mirrored++
}

// unmirror lets go of svc's mirrored slices.
func (s *Store) unmirror(svc *service) {
	if svc.mirrored == nil {
		return
	}
	for _, d := range svc.mirrored {
		s.stats.RefusedEndpoints -= d.refused
		s.nodes.addUse(svc, d, -1)
	}
	s.stats.Mirrored--
	svc.mirrored, svc.warnings = nil, nil
}

// mirrored turns svc's Endpoints into slices, a slice for each canonical subset of at most most
// addresses, and sets svc.warnings. It never returns nil.
func (p sliceParser) mirrored(svc *service, most int) []*sliceData {
	ep := svc.endpoints
	object := "Endpoints " + ep.Namespace + "/" + ep.Name
	svc.warnings = nil
	if ep.Annotations[corev1.EndpointsOverCapacity] == "truncated" {
		svc.warnings = append(svc.warnings, object+": over capacity, truncated: endpoints are missing from it")
	}
	out := []*sliceData{}
	skipped := 0
	for _, sub := range repack(ep.Subsets) {
		d := &sliceData{svc: svc, name: fmt.Sprintf("%s-%d", ep.Name, len(out))}
		p.mirroredPorts(d, object, sub.ports)
		for i, a := range sub.addresses {
			if len(d.endpoints) >= most {
				skipped += len(sub.addresses) - i
				break
			}
			p.mirroredAddress(d, object, a)
		}
		d.addOmittedCount(object)
		out = append(out, d)
	}
	if skipped > 0 {
		svc.warnings = append(svc.warnings, fmt.Sprintf(
			"%s: at most %d addresses of a subset are mirrored: %d were skipped", object, most, skipped))
	}
	return out
}

func (p sliceParser) mirroredPorts(d *sliceData, object string, ports []mirrorPort) {
	for _, q := range ports {
		at := "subsets.ports[" + quote(q.name) + "]"
		switch {
		case q.number < 1 || q.number > 65535:
			d.addError(object, invalidInt(at+".port", int(q.number), portRange))
		case !knownProtocol(q.protocol):
			d.addError(object, notSupported(at+".protocol", q.protocol, protocols))
		default:
			d.ports = append(d.ports, slicePort{portID{p.intern.string(q.name), p.intern.string(q.protocol)}, uint16(q.number)})
		}
	}
}

func (p sliceParser) mirroredAddress(d *sliceData, object string, a mirrorAddress) {
	addr, reason := checkAddr(a.ip)
	if reason != "" {
		d.refused++
		d.addError(object, invalid("subsets.addresses", a.ip, reason))
		return
	}
	e := sliceEndpoint{addr: addr, state: serving}
	if a.ready {
		e.state |= ready
	}
	if a.node != "" {
		e.node = p.nodes.named(a.node)
	}
	d.endpoints = append(d.endpoints, e)
}

// repackedSubset is a canonical subset: addresses that offer the same ports.
type repackedSubset struct {
	ports     []mirrorPort
	addresses []mirrorAddress // the ready ones first, sorted by ip and uid
}

type mirrorPort struct {
	name, protocol string
	number         int32
}

type mirrorAddress struct {
	addressKey
	node  string
	ready bool
}

// addressKey distinguishes addresses: two Pods may have the same address.
type addressKey struct{ ip, uid string }

// repack brings subsets into the canonical form of the endpoints controller:
// every port with the set of addresses, ports with equal sets together, unless they have the same
// name. An address that is
// ready in some subset and not in another is not ready on the ports that both have.
func repack(subsets []corev1.EndpointSubset) []repackedSubset {
	byPort := make(map[mirrorPort]map[addressKey]mirrorAddress)
	for i := range subsets {
		sub := &subsets[i]
		for j := range sub.Ports {
			p := mirrorPort{sub.Ports[j].Name, string(cmp.Or(sub.Ports[j].Protocol, corev1.ProtocolTCP)), sub.Ports[j].Port}
			set := byPort[p]
			if set == nil {
				set = make(map[addressKey]mirrorAddress)
				byPort[p] = set
			}
			addAddresses(set, sub.Addresses, true)
			addAddresses(set, sub.NotReadyAddresses, false)
		}
	}
	ports := make([]mirrorPort, 0, len(byPort))
	for p := range byPort {
		ports = append(ports, p)
	}
	slices.SortFunc(ports, func(a, b mirrorPort) int {
		return cmp.Or(strings.Compare(a.name, b.name), strings.Compare(a.protocol, b.protocol), cmp.Compare(a.number, b.number))
	})
	var out []repackedSubset
	index := map[string]int{} // of out, by the addresses
	for _, p := range ports {
		addrs := sorted(byPort[p])
		id := identify(addrs)
		at, ok := index[id]
		if !ok || out[at].names(p) {
			at = len(out)
			index[id] = at
			out = append(out, repackedSubset{addresses: addrs})
		}
		out[at].ports = append(out[at].ports, p)
	}
	return out
}

// names reports whether the subset has another port of the name, as a slice must not. Ports come
// in the order of names.
func (r *repackedSubset) names(p mirrorPort) bool {
	last := r.ports[len(r.ports)-1]
	return last.name == p.name && last.protocol == p.protocol
}

// identify returns a text that differs for lists that differ.
func identify(addrs []mirrorAddress) string {
	var b []byte
	for _, a := range addrs {
		for _, field := range []string{a.ip, a.uid, a.node} {
			b = strconv.AppendQuote(b, field)
		}
		b = strconv.AppendBool(b, a.ready)
	}
	return string(b)
}

// addAddresses adds addresses to a port's set; not ready trumps ready.
func addAddresses(set map[addressKey]mirrorAddress, addrs []corev1.EndpointAddress, isReady bool) {
	for i := range addrs {
		a := &addrs[i]
		key := addressKey{ip: a.IP}
		if a.TargetRef != nil {
			key.uid = string(a.TargetRef.UID)
		}
		m, found := set[key]
		if !found {
			m = mirrorAddress{addressKey: key, ready: isReady}
			if a.NodeName != nil {
				m.node = *a.NodeName
			}
		}
		m.ready = m.ready && isReady
		set[key] = m
	}
}

// sorted lists a set, ready addresses first: they are the last to be cut off.
func sorted(set map[addressKey]mirrorAddress) []mirrorAddress {
	out := make([]mirrorAddress, 0, len(set))
	for _, a := range set {
		out = append(out, a)
	}
	slices.SortFunc(out, func(a, b mirrorAddress) int {
		if a.ready != b.ready {
			if a.ready {
				return -1
			}
			return 1
		}
		return cmp.Or(strings.Compare(a.ip, b.ip), strings.Compare(a.uid, b.uid))
	})
	return out
}
