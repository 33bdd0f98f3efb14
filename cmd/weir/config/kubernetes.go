package config

import (
	"slices"

	"k8s.io/apimachinery/pkg/labels"
)

// Kubernetes is the source that watches an API server.
type Kubernetes struct {
	// Kubeconfig is the path of a kubeconfig; "" is the in-cluster account.
	Kubeconfig string `json:"kubeconfig"`
	// LabelSelector restricts the Services that are watched; "" is all.
	LabelSelector string `json:"labelSelector"`
	// LegacyEndpoints also watches Endpoints. It is needed only in clusters
	// without a controller that mirrors them into EndpointSlices, and costs a
	// watch of an object per Service.
	LegacyEndpoints bool `json:"legacyEndpoints"`
	// LastKnownMaxAgeHours is the maximum age of a last known state that is
	// served at a start without API server. Age is the time since the state was
	// last confirmed by the API server. In an older state addresses may belong to
	// other Pods by now. 0 is no limit; the default is 72.
	LastKnownMaxAgeHours *int `json:"lastKnownMaxAgeHours,omitempty"`
	// Events is off or on. With on Weir records Events on Services with a frontend
	// on this node: of those that it cannot serve as they ask, and of another tier
	// in use. Nodes with the same to say record an Event together, and a node
	// records at most one per second. The default is on.
	Events string `json:"events,omitempty"`
}

// Values of discovery.kubernetes.events.
const (
	EventsOff = "off"
	EventsOn  = "on"
)

// RecordsEvents reports whether Events are recorded.
func (k *Kubernetes) RecordsEvents() bool { return k.Events != EventsOff }

// DefaultLastKnownMaxAgeHours is the default of that field: a long weekend.
const DefaultLastKnownMaxAgeHours = 72

func (k *Kubernetes) validate(r *report) {
	if _, err := labels.Parse(k.LabelSelector); err != nil {
		r.addf("discovery.kubernetes.labelSelector", "%q: %v", k.LabelSelector, err)
	}
	const tenYears = 10 * 366 * 24
	if h := k.LastKnownMaxAgeHours; h != nil && (*h < 0 || *h > tenYears) {
		r.addf("discovery.kubernetes.lastKnownMaxAgeHours", "%d is not from 1 to %d, or 0 for no limit", *h, tenYears)
	}
	if !slices.Contains([]string{"", EventsOff, EventsOn}, k.Events) {
		r.addf("discovery.kubernetes.events", "must be off or on, is %q", k.Events)
	}
}
