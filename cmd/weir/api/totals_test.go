package api_test

import (
	"math"
	"testing"
	"time"

	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/cmd/weir/problem"
	"github.com/weirlb/weir/lb/counter"
)

func TestOfSeveralConditionsTheFirstCounts(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	s := api.Status{Problems: []problem.Problem{{Kind: problem.APIServer, Since: at}}}
	want := func(c api.Condition, text string) {
		t.Helper()
		if got, words := s.Condition(); got != c || words != text {
			t.Errorf("%s, %q: want %s, %q", got, words, c, text)
		}
	}
	want(api.Starting, "waiting for the first full view: no traffic is taken yet")
	s.Synced = true
	want(api.Serving, "serving, API server away since 2026-01-02T03:04:05Z")
	s.Discovery.LastKnown = &at
	want(api.LastKnown, "serving the last known state, of 2026-01-02T03:04:05Z: the API server has not sent its own")
	s.Draining, s.Drain = true, &api.Drain{Connections: 1, SecondsLeft: 7}
	want(api.Draining, "draining: 1 connection left, 7 s to go")
	s.Unhealthy = "worker 1 is stuck"
	want(api.Unhealthy, "draining: 1 connection left, 7 s to go, unhealthy: worker 1 is stuck")
}

func TestRatesOfTotals(t *testing.T) {
	s := api.Status{Workers: make([]api.Worker, 2), Drops: map[string]uint64{"a": 1, "b": 2}}
	for i := range s.Workers {
		c := &s.Workers[i].Counters
		c[counter.RxPackets], c[counter.RxBytes], c[counter.NewFlows] = 10, 100, 1
	}
	now := s.Totals()
	if want := (api.Totals{Packets: 20, Bytes: 200, Flows: 2, Drops: 3}); now != want {
		t.Errorf("totals %+v, want %+v", now, want)
	}
	got := now.Since(api.Totals{Packets: 10, Flows: 5, Drops: 3}, 2) // the flows began anew
	if want := (api.Rates{Packets: 5, Bytes: 100}); got != want {
		t.Errorf("rates %+v, want %+v", got, want)
	}
	if r := now.Since(api.Totals{}, 0); !math.IsNaN(r.Packets) {
		t.Errorf("without a time: %+v", r)
	}
}
