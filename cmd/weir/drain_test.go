package main

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/weirlb/weir/cmd/weir/api"
)

type drainSource struct {
	api.Source
	drains api.Drains
}

func (s *drainSource) Drains(context.Context) (*api.Drains, error) { return &s.drains, nil }

// Who waits for the end of connections does not take the end of the drain for it: load balancers
// send to the node again.
func TestWaitForADrainThatWasEnded(t *testing.T) {
	for _, c := range []struct {
		drains api.Drains
		ok     bool
	}{
		{api.Drains{Self: true}, true},
		{api.Drains{Self: true, Connections: 1}, false},
		{api.Drains{}, false},
	} {
		client := api.NewLocalClient(&drainSource{drains: c.drains})
		if _, err := waitDrained(t.Context(), client, time.Millisecond); (err == nil) != c.ok {
			t.Errorf("%+v: %v", c.drains, err)
		}
	}
}

func TestEndpointsToComplete(t *testing.T) {
	l := &api.EndpointList{Endpoints: []api.EndpointState{{Address: "10.1.1.2:80"}, {Address: "10.1.1.1:80"}, {Address: "10.1.1.1:80"}, {Address: "192.0.2.1:80"}}}
	if got := endpointsLike(l, []string{"10.1.1.2:80"}, "10."); !slices.Equal(got, []string{"10.1.1.1:80"}) {
		t.Errorf("got %v", got)
	}
}
