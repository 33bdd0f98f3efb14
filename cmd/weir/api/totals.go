package api

import (
	"math"
	"time"

	"github.com/weirlb/weir/cmd/weir/problem"
	"github.com/weirlb/weir/lb/counter"
)

// Totals are the counters of a node or a Service that all views show, each as Rates too.
type Totals struct{ Packets, Bytes, Flows, Failed, Resent, Drops uint64 }

// Rates are Totals per second.
type Rates struct{ Packets, Bytes, Flows, Failed, Resent, Drops float64 }

// Totals adds the counters of the workers.
func (s *Status) Totals() Totals {
	t := Totals{Drops: Sum(s.Drops)}
	for i := range s.Workers {
		c := &s.Workers[i].Counters
		t.Packets += c[counter.RxPackets]
		t.Bytes += c[counter.RxBytes]
		t.Flows += c[counter.NewFlows]
	}
	return t
}

// Totals adds the counters of both directions.
func (s *ServiceState) Totals() Totals {
	return Totals{
		Packets: s.Packets.FromClients + s.Packets.FromEndpoints, Bytes: s.Bytes.FromClients + s.Bytes.FromEndpoints,
		Flows: s.NewConnections, Failed: s.FailedHandshakes, Resent: s.Retransmissions.Sum(), Drops: Sum(s.Drops),
	}
}

// Since are the rates since totals of so many seconds before.
func (t Totals) Since(before Totals, seconds float64) Rates {
	return Rates{
		PerSecond(t.Packets, before.Packets, seconds), PerSecond(t.Bytes, before.Bytes, seconds), PerSecond(t.Flows, before.Flows, seconds),
		PerSecond(t.Failed, before.Failed, seconds), PerSecond(t.Resent, before.Resent, seconds), PerSecond(t.Drops, before.Drops, seconds),
	}
}

// PerSecond is the rate of a counter, 0 for one that began anew, and not a number without a time.
func PerSecond(now, before uint64, seconds float64) float64 {
	if seconds <= 0 {
		return math.NaN()
	}
	return float64(now-min(now, before)) / seconds
}

// Sum adds counts, as of drops by reason.
func Sum(counts map[string]uint64) (n uint64) {
	for _, c := range counts {
		n += c
	}
	return n
}

// BusySince is the share of the time since counters of so many seconds before in which the worker was
// busy.
func (w *Worker) BusySince(before *counter.Values, seconds float64) float64 {
	return min(1, max(0, (w.Counters.Busy()-before.Busy()).Seconds()/seconds))
}

// Condition is the state of a node in a word.
type Condition string

// The conditions: of several the first counts.
const (
	Unhealthy Condition = "unhealthy"
	Draining  Condition = "draining"
	Starting  Condition = "starting" // no traffic is taken yet
	LastKnown Condition = "last-known"
	Serving   Condition = "serving"
)

// Condition is the state of the node, and what it does in words.
func (s *Status) Condition() (c Condition, text string) {
	c, text = Serving, "serving"
	switch known := s.Discovery.LastKnown; {
	case s.Drain != nil:
		c, text = Draining, s.Drain.String()
	case s.Draining:
		c, text = Draining, "draining"
	case !s.Synced:
		c, text = Starting, "waiting for the first full view: no traffic is taken yet"
	case known != nil:
		c, text = LastKnown, "serving the last known state, of "+known.Format(time.RFC3339)+": the API server has not sent its own"
	default:
		if since := s.awaySince(); !since.IsZero() {
			text += ", API server away since " + since.Format(time.RFC3339)
		}
	}
	if s.Unhealthy != "" {
		c, text = Unhealthy, text+", unhealthy: "+s.Unhealthy
	}
	return c, text
}

// awaySince is the time since which the API server has not answered for some
// resource; zero if it answers for all.
func (s *Status) awaySince() (since time.Time) {
	for i := range s.Problems {
		if p := &s.Problems[i]; p.Kind == problem.APIServer && (since.IsZero() || p.Since.Before(since)) {
			since = p.Since
		}
	}
	return since
}
