package gateway

import (
	"crypto/sha256"
	"fmt"
	"maps"
	"math/big"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weirlb/weir/discovery"
)

// maxWeight is the largest weight of an endpoint (weir.dev/weight).
const maxWeight = 1000

// source is a slice of a backend, with the part of each of the endpoints.
type source struct {
	slice     *discoveryv1.EndpointSlice
	port      int32
	part      *big.Rat // of the backend's
	endpoints []discoveryv1.Endpoint
	parts     []*big.Rat // of each endpoint: that of all backends that have it
}

// claim is where an endpoint is.
type claim struct{ source, index int }

// where is an endpoint's address, with the port.
type where struct {
	address string
	port    int32
}

// slices makes the slices of a listener. Each has endpoints of a slice of a backend, so that a change
// of that changes few others.
func (t *translation) slices(g *gateway, l *listener, svc *corev1.Service) {
	r := l.attached[0]
	t.count(r) // before the shares, which are the work
	if g.endpoints += r.endpoints; g.endpoints > maxEndpoints {
		l.lacking = &reason{"TooManyEndpoints", fmt.Sprintf("the listeners of a Gateway have at most %d endpoints", maxEndpoints)}
		return
	}
	if t.endpoints[svc.Namespace]+r.endpoints > maxNamespaceEndpoints {
		l.lacking = &reason{"TooManyEndpoints", fmt.Sprintf("the Gateways of a namespace have at most %d endpoints", maxNamespaceEndpoints)}
		return
	}
	t.endpoints[svc.Namespace] += r.endpoints
	if r.weights == nil {
		r.sources = t.sources(r)
		r.weights = scale(r.sources)
	}
	sources, weights := r.sources, r.weights
	for i := range sources {
		s := &sources[i]
		groups := map[int64][]discoveryv1.Endpoint{}
		for j := range s.endpoints {
			if s.parts[j] != nil {
				w := weights[s.parts[j].RatString()]
				groups[w] = append(groups[w], s.endpoints[j])
			}
		}
		// The name of the slice with the weight of the backend must not depend on the weight.
		own, k := weights[s.part.RatString()], 0
		if list := groups[own]; len(list) > 0 {
			t.out.Slices = append(t.out.Slices, s.generate(l, svc, 0, own, list))
		}
		for _, w := range slices.Sorted(maps.Keys(groups)) {
			if w != own {
				k++
				t.out.Slices = append(t.out.Slices, s.generate(l, svc, k, w, groups[w]))
			}
		}
	}
}

// count counts the endpoints of a route, once for all listeners.
func (t *translation) count(r *route) {
	if r.counted {
		return
	}
	r.counted = true
	for _, b := range r.targets {
		if b.weight == 0 || r.endpoints > maxEndpoints {
			continue
		}
		for _, s := range t.in.Slices(b.service.Namespace, b.service.Name) {
			r.endpoints += len(s.Endpoints)
		}
	}
}

// sources are the slices of all backends of a route that have a weight. An endpoint of several has the
// parts of all, in the first slice in which it is ready.
func (t *translation) sources(r *route) (out []source) {
	at := map[where]claim{}
	for _, b := range r.targets {
		if b.weight == 0 {
			continue
		}
		first := len(out)
		list := slices.Clone(t.in.Slices(b.service.Namespace, b.service.Name))
		slices.SortFunc(list, func(a, b *discoveryv1.EndpointSlice) int { return strings.Compare(a.Name, b.Name) })
		for _, s := range list {
			if port := slicePort(s, &b.port); port != 0 && s.AddressType != discoveryv1.AddressTypeFQDN {
				out = append(out, source{slice: s, port: port, endpoints: s.Endpoints, parts: make([]*big.Rat, len(s.Endpoints))})
			}
		}
		t.divide(out, first, b.weight, at)
	}
	return out
}

// divide gives each endpoint of a backend, whose slices are from first on, a part of the weight: of each
// family all, since a client has an address of one.
func (t *translation) divide(all []source, first int, weight int64, at map[where]claim) {
	ready, others := map[discoveryv1.AddressType]int64{}, map[discoveryv1.AddressType]int64{}
	seen := map[where]claim{}
	for i := first; i < len(all); i++ {
		s := &all[i]
		for j := range s.endpoints {
			e := &s.endpoints[j]
			if len(e.Addresses) == 0 {
				continue
			}
			w := where{e.Addresses[0], s.port}
			if old, twice := seen[w]; twice {
				if !isReady(e) || isReady(&all[old.source].endpoints[old.index]) {
					continue
				}
				others[s.slice.AddressType]--
			}
			seen[w] = claim{i, j}
			if isReady(e) {
				ready[s.slice.AddressType]++
			} else {
				others[s.slice.AddressType]++
			}
		}
	}
	for i := first; i < len(all); i++ {
		n := ready[all[i].slice.AddressType]
		if n == 0 {
			n = max(1, others[all[i].slice.AddressType])
		}
		all[i].part = big.NewRat(weight, n)
	}
	for w, c := range seen {
		part := all[c.source].part
		old, shared := at[w]
		switch {
		case !shared:
			at[w] = c
		case isReady(&all[c.source].endpoints[c.index]) && !isReady(&all[old.source].endpoints[old.index]):
			part = new(big.Rat).Add(part, all[old.source].parts[old.index])
			all[old.source].parts[old.index] = nil
			at[w] = c
		default:
			part = new(big.Rat).Add(part, all[old.source].parts[old.index])
			c = old
		}
		all[c.source].parts[c.index] = part
	}
}

// isReady is the condition of an endpoint that new flows are sent to.
func isReady(e *discoveryv1.Endpoint) bool { return e.Conditions.Ready == nil || *e.Conditions.Ready }

// scale makes parts weights, by their text: the smallest whole numbers, or, beyond maxWeight, the nearest
// that are not 0. Equal parts have weight 0, which is that of a slice without a weight.
func scale(sources []source) map[string]int64 {
	parts := map[string]*big.Rat{}
	for i := range sources {
		for _, p := range sources[i].parts {
			if p != nil {
				parts[p.RatString()] = p
			}
		}
	}
	out := map[string]int64{}
	if len(parts) < 2 {
		return out
	}
	denominator, largest := big.NewInt(1), new(big.Rat)
	for _, p := range parts {
		gcd := new(big.Int).GCD(nil, nil, denominator, p.Denom())
		denominator.Mul(denominator, new(big.Int).Div(p.Denom(), gcd))
		if p.Cmp(largest) > 0 {
			largest = p
		}
	}
	factor := new(big.Rat).SetInt(denominator)
	common := new(big.Int)
	for _, p := range parts {
		common.GCD(nil, nil, common, new(big.Rat).Mul(p, factor).Num())
	}
	factor.Quo(factor, new(big.Rat).SetInt(common))
	if most := big.NewRat(maxWeight, 1); new(big.Rat).Mul(largest, factor).Cmp(most) > 0 {
		factor.Quo(most, largest)
	}
	for text, p := range parts {
		w, _ := new(big.Rat).Mul(p, factor).Float64()
		out[text] = max(1, int64(w+0.5))
	}
	return out
}

// newSlice makes a slice of a port of a generated Service.
func newSlice(name string, protocol corev1.Protocol, svc *corev1.Service, family discoveryv1.AddressType, suffix string, port int32) *discoveryv1.EndpointSlice {
	return &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: svc.Namespace, Name: fmt.Sprintf("%s-%s-%s", svc.Name, name, suffix),
			Labels: map[string]string{
				discoveryv1.LabelServiceName: svc.Name,
				discoveryv1.LabelManagedBy:   ManagedBy,
			},
			OwnerReferences: svc.OwnerReferences,
		},
		AddressType: family,
		Ports:       []discoveryv1.EndpointPort{{Name: &name, Protocol: &protocol, Port: &port}},
	}
}

// generate makes a slice of a listener's port with endpoints of a backend.
func (s *source) generate(l *listener, svc *corev1.Service, k int, weight int64, endpoints []discoveryv1.Endpoint) *discoveryv1.EndpointSlice {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s/%s:%d", s.slice.Namespace, s.slice.Name, s.port))
	out := newSlice(l.portName(), l.protocol(), svc, s.slice.AddressType, fmt.Sprintf("%x-%d", sum[:5], k), s.port)
	if weight > 0 {
		out.Annotations = map[string]string{discovery.AnnotationWeight: strconv.FormatInt(weight, 10)}
	}
	for i := range endpoints {
		e := &endpoints[i]
		// Hints hold among the endpoints of a Service, not among those of several.
		out.Endpoints = append(out.Endpoints, discoveryv1.Endpoint{
			Addresses: e.Addresses, Conditions: e.Conditions, NodeName: e.NodeName, Zone: e.Zone,
		})
	}
	return out
}
