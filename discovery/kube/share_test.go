package kube

import (
	"testing"
	"time"
)

// All nodes of a fleet together look at no more Events than a bounded number, however large the fleet.
func TestAFleetSharesTheRateOfEvents(t *testing.T) {
	start := time.Unix(1e9, 0)
	for _, nodes := range []int{1, 10, 200, 5000} {
		const events, within = 100, 10 * time.Second
		requests := 0
		for range nodes {
			var wait time.Duration
			for now, paid, n := start, (time.Time{}), 0; n < events; n++ {
				if wait, paid = share(nodes, paid, now); wait > 0 {
					now = now.Add(wait)
				}
				if now.Sub(start) < within {
					requests++
				}
			}
		}
		// Each node looks at its first at once.
		if most := max(nodes, eventBurst) + int(within.Seconds())*eventsPerSecond; requests > most {
			t.Errorf("%d nodes: %d requests within %v, want %d", nodes, requests, within, most)
		}
	}
}
