package topology

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

// conditioned is an endpoint in a state of State.
func conditioned(state string) Endpoint {
	e := Endpoint{AddrPort: netip.MustParseAddrPort("10.0.0.1:80")}
	switch state {
	case "ready":
		e.Ready, e.Serving = true, true
	case "terminating":
		e.Serving, e.Terminating = true, true
	case "terminated":
		e.Terminating = true
	}
	return e
}

// The table of the package comment, beside an endpoint that is ready.
func TestReadinessCombinesConditionsAndHealth(t *testing.T) {
	for _, c := range []struct{ state, drained, fails, both string }{
		{"ready", "terminating", "not-ready", "not-ready"},
		{"terminating", "terminating", "terminated", "terminated"},
		{"terminated", "terminated", "terminated", "terminated"},
		{"not-ready", "not-ready", "not-ready", "not-ready"},
	} {
		for _, h := range []struct {
			Health
			want string
		}{
			{Health{}, c.state}, {Health{Drained: true}, c.drained}, {Health{Failing: true}, c.fails}, {Health{Ejected: true}, c.fails},
			{Health{Failing: true, Drained: true}, c.both}, {Health{Refused: true, Drained: true, Failing: true}, "not-ready"},
		} {
			eps := []Endpoint{conditioned(c.state), conditioned("ready")}
			got := Readiness(eps, func(e *Endpoint) Health {
				if e == &eps[0] {
					return h.Health
				}
				return Health{}
			}, false)
			if got[0].State() != h.want || got[1].State() != "ready" || eps[0].State() != c.state {
				t.Errorf("%s with %+v: %s, want %s", c.state, h.Health, got[0].State(), h.want)
			}
		}
	}
}

// What counts where no endpoint is left.
func TestReadinessFailsOpen(t *testing.T) {
	for _, c := range []struct{ eps, open, closed string }{
		// state, then f: failing, e: ejected, d: drained, r: refused
		{"ready:f ready:f", "ready ready", "not-ready not-ready"},
		{"ready:f ready", "not-ready ready", "not-ready ready"},
		{"ready:e ready:f", "not-ready ready", "ready not-ready"},
		{"ready:e ready:e", "ready ready", "ready ready"},
		{"ready:fe ready:f", "not-ready ready", "not-ready not-ready"},
		{"ready:f terminating", "not-ready terminating", "not-ready terminating"},
		{"ready:f ready:d", "not-ready terminating", "not-ready terminating"},
		{"ready:f ready:fd", "ready terminating", "not-ready not-ready"},
		{"terminating:f not-ready:f", "terminating not-ready", "terminated not-ready"},
		{"ready:fr ready:f", "not-ready ready", "not-ready not-ready"},
		{"not-ready:f", "not-ready", "not-ready"},
	} {
		for _, closed := range []bool{false, true} {
			var eps []Endpoint
			var list []Health
			for word := range strings.FieldsSeq(c.eps) {
				state, marks, _ := strings.Cut(word, ":")
				eps = append(eps, conditioned(state))
				list = append(list, Health{
					Failing: strings.Contains(marks, "f"), Ejected: strings.Contains(marks, "e"),
					Drained: strings.Contains(marks, "d"), Refused: strings.Contains(marks, "r"),
				})
			}
			i := -1
			got := Readiness(eps, func(*Endpoint) Health { i++; return list[i] }, closed)
			var states []string
			for j := range got {
				states = append(states, got[j].State())
			}
			want := c.open
			if closed {
				want = c.closed
			}
			if fmt.Sprint(states) != "["+want+"]" {
				t.Errorf("%s, closed %v: %v, want %s", c.eps, closed, states, want)
			}
		}
	}
}

func TestReadinessWithoutHealthIsFree(t *testing.T) {
	eps := slices.Repeat([]Endpoint{conditioned("ready")}, 100)
	if n := testing.AllocsPerRun(10, func() { Readiness(eps, func(*Endpoint) Health { return Health{} }, false) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
	if got := Readiness(eps, func(*Endpoint) Health { return Health{} }, true); &got[0] != &eps[0] {
		t.Error("copied")
	}
}
