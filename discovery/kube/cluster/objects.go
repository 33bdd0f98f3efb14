// Package cluster has the objects of a cluster as values, for packages that need no client of
// its API server.
package cluster

//lint:file-ignore SA1019 Endpoints are deprecated, and watched where that is asked for.

import (
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// Objects are all objects of a source, trimmed to the fields in use. They must not be
// changed.
type Objects struct {
	Services  []*corev1.Service
	Slices    []*discoveryv1.EndpointSlice
	Nodes     []*corev1.Node
	Endpoints []*corev1.Endpoints
	// Valid are the last valid versions of those Services that are invalid now.
	Valid []*corev1.Service
}

// Len is the number of objects.
func (o *Objects) Len() int {
	return len(o.Services) + len(o.Slices) + len(o.Nodes) + len(o.Endpoints) + len(o.Valid)
}
