package controlplane

//lint:file-ignore SA1019 Endpoints are what slices are compared with.

import (
	"bytes"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
)

// Economy compares EndpointSlices with an Endpoints object: the bytes that an
// API server sends to the watching nodes. The sizes are those of real objects,
// encoded as an API server encodes them; compression and the watch event
// around an object are left out.
type Economy struct {
	Endpoints int         `json:"endpoints"` // of the Service
	Nodes     int         `json:"nodes"`     // that watch
	PerSlice  int         `json:"perSlice"`
	Encodings []EconomyOf `json:"encodings"`
	// Proposal is the estimate of KEP-752 for the same numbers, that slices
	// were made for: objects of 1.5 MB, the most that etcd takes.
	Proposal EconomyOf `json:"proposal"`
}

// proposal are the figures of KEP-752, "Motivation".
func proposal(endpoints, nodes int) EconomyOf {
	const object = 1.5e6
	change := object * float64(nodes)
	return EconomyOf{EndpointsObject: object, EndpointsChange: change, EndpointsRollout: change * float64(endpoints)}
}

// EconomyOf is the comparison in one encoding. All figures are bytes, those of
// Change and Rollout for all nodes together.
type EconomyOf struct {
	Encoding string `json:"encoding,omitempty"` // json, protobuf
	// Object is an encoded Endpoints object or full slice.
	EndpointsObject int `json:"endpointsObject"`
	SliceObject     int `json:"sliceObject,omitempty"`
	// Change is an endpoint replaced.
	EndpointsChange float64 `json:"endpointsChange"`
	SlicesChange    float64 `json:"slicesChange,omitempty"`
	// Rollout is every endpoint replaced, in sequence.
	EndpointsRollout float64 `json:"endpointsRollout"`
	SlicesRollout    float64 `json:"slicesRollout,omitempty"`
	SliceWrites      int     `json:"sliceWrites,omitempty"` // of the rollout
}

// encoding measures how an API server would encode an object.
type encoding struct {
	name    string
	encoder runtime.Encoder
}

func encodings() []encoding {
	scheme := runtime.NewScheme()
	return []encoding{
		{"json", json.NewSerializerWithOptions(json.DefaultMetaFactory, scheme, scheme, json.SerializerOptions{})},
		{"protobuf", protobuf.NewSerializer(scheme, scheme)},
	}
}

func (e encoding) size(object runtime.Object) (int, error) {
	var b bytes.Buffer
	if err := e.encoder.Encode(object, &b); err != nil {
		return 0, fmt.Errorf("%s: %w", e.name, err)
	}
	return b.Len(), nil
}

// economy computes the figures of the EndpointSlice proposal (KEP-752): a
// Service of so many endpoints, watched by so many nodes.
func economy(endpoints, nodes int) (Economy, error) {
	out := Economy{Endpoints: endpoints, Nodes: nodes, PerSlice: perSlice, Proposal: proposal(endpoints, nodes)}
	// The slices are full and alike, so a part of the rollout tells the whole.
	part := min(endpoints, 5*perSlice)
	writes := rollout(endpoints, part)
	for _, enc := range encodings() {
		e := EconomyOf{Encoding: enc.name, SliceWrites: len(writes) * endpoints / part}
		var err error
		if e.EndpointsObject, err = enc.size(endpointsObject(endpoints)); err != nil {
			return out, err
		}
		full := newCluster(1, perSlice)
		if e.SliceObject, err = enc.size(typed(full.sliceObject(0, 0, 0))); err != nil {
			return out, err
		}
		n := float64(nodes)
		e.EndpointsChange = float64(e.EndpointsObject) * n
		e.EndpointsRollout = e.EndpointsChange * float64(endpoints)
		for _, w := range writes {
			size, err := enc.size(typed(w))
			if err != nil {
				return out, err
			}
			e.SlicesChange += float64(size) * n / float64(part)
		}
		e.SlicesRollout = e.SlicesChange * float64(endpoints)
		out.Encodings = append(out.Encodings, e)
	}
	return out, nil
}

// rollout replaces n endpoints of a Service in sequence, and returns every
// slice that the slice controller writes. For each endpoint that is the slice
// that it was in: others are full, and a write of them would be one more
// (KEP-752, "Distribution of EndpointSlices").
func rollout(endpoints, n int) []*discoveryv1.EndpointSlice {
	c := newCluster(1, endpoints)
	writes := make([]*discoveryv1.EndpointSlice, n)
	for i := range writes {
		writes[i] = c.sliceObject(0, i/perSlice, i%perSlice+1)
	}
	return writes
}

// endpointsObject is the legacy object of the same Service, as before it was
// cut off at 1,000 addresses (Kubernetes 1.22): then its references to Pods
// had a resource version.
func endpointsObject(n int) *corev1.Endpoints {
	ep := &corev1.Endpoints{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Endpoints"},
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: serviceName(0), UID: uid("endpoints", 0)},
	}
	subset := corev1.EndpointSubset{Ports: []corev1.EndpointPort{{Name: "http", Port: 8080, Protocol: corev1.ProtocolTCP}}}
	for i := range n {
		e := endpointObject(0, i)
		e.TargetRef.ResourceVersion = fmt.Sprint(100_000_000 + i)
		subset.Addresses = append(subset.Addresses, corev1.EndpointAddress{
			IP: e.Addresses[0], NodeName: e.NodeName, TargetRef: e.TargetRef,
		})
	}
	ep.Subsets = []corev1.EndpointSubset{subset}
	return ep
}

func typed(s *discoveryv1.EndpointSlice) *discoveryv1.EndpointSlice {
	s.TypeMeta = metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"}
	return s
}
