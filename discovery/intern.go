package discovery

import (
	"slices"
	"strings"

	discoveryv1 "k8s.io/api/discovery/v1"
)

// maxInterned bounds the tables below: they hold names of zones and nodes
// that may be long gone. A full table is dropped, which costs sharing for a
// while and nothing else.
const maxInterned = 1 << 16

// zoneHints are the hints of an endpoint, shared by all that carry the same.
type zoneHints struct{ zones, nodes []string }

// extraLabels are the labels of a v1beta1 topology map beyond the node's name and the zone,
// shared likewise.
type extraLabels struct{ labels map[string]string }

// interner shares equal strings and small sets among endpoints: a cluster has
// few zones and many endpoints.
type interner struct {
	strings map[string]string
	hints   map[string]*zoneHints
	traits  map[string]*extraLabels
}

func (in *interner) string(s string) string {
	if s == "" {
		return ""
	}
	if shared, ok := in.strings[s]; ok {
		return shared
	}
	if in.strings == nil || len(in.strings) >= maxInterned {
		in.strings = make(map[string]string)
	}
	s = strings.Clone(s)
	in.strings[s] = s
	return s
}

// hintsOf is nil for an endpoint without hints.
func (in *interner) hintsOf(h *discoveryv1.EndpointHints) *zoneHints {
	if h == nil || len(h.ForZones) == 0 && len(h.ForNodes) == 0 {
		return nil
	}
	var key strings.Builder
	for i := range h.ForZones {
		key.WriteString(h.ForZones[i].Name)
		key.WriteByte(0)
	}
	key.WriteByte(1)
	for i := range h.ForNodes {
		key.WriteString(h.ForNodes[i].Name)
		key.WriteByte(0)
	}
	if shared, ok := in.hints[key.String()]; ok {
		return shared
	}
	if in.hints == nil || len(in.hints) >= maxInterned {
		in.hints = make(map[string]*zoneHints)
	}
	shared := &zoneHints{}
	for i := range h.ForZones {
		shared.zones = append(shared.zones, in.string(h.ForZones[i].Name))
	}
	for i := range h.ForNodes {
		shared.nodes = append(shared.nodes, in.string(h.ForNodes[i].Name))
	}
	in.hints[key.String()] = shared
	return shared
}

// extraLabelsOf is nil for a map without labels.
func (in *interner) extraLabelsOf(labels map[string]string) *extraLabels {
	if len(labels) == 0 {
		return nil
	}
	keys := make([]string, 0, len(labels))
	for k := range labels {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	var key strings.Builder
	for _, k := range keys {
		key.WriteString(k)
		key.WriteByte(0)
		key.WriteString(labels[k])
		key.WriteByte(0)
	}
	if shared, ok := in.traits[key.String()]; ok {
		return shared
	}
	if in.traits == nil || len(in.traits) >= maxInterned {
		in.traits = make(map[string]*extraLabels)
	}
	shared := &extraLabels{labels: make(map[string]string, len(keys))}
	for _, k := range keys {
		shared.labels[in.string(k)] = in.string(labels[k])
	}
	in.traits[key.String()] = shared
	return shared
}
