package announce

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// checkExplained compares the explanations with the decisions: the first condition that is not
// met is the reason.
func checkExplained(t *rapid.T, r *Rule, s *step, out *Outcome) {
	for _, d := range out.Decisions {
		list := r.Explain(d.Address, &s.node, s.frontends[d.Address], s.at)
		if got := firstUnmet(list); got.Reason != d.Reason || d.Reason != Announced && got.Detail != d.Detail {
			t.Fatalf("%v: decided %v (%s), explained %v (%s)", d.Address, d.Reason, d.Detail, got.Reason, got.Detail)
		}
	}
}

func firstUnmet(list []Condition) Condition {
	if i := slices.IndexFunc(list, func(c Condition) bool { return !c.Met }); i >= 0 {
		return list[i]
	}
	return Condition{}
}

// All conditions are listed, each with the state that it has by itself.
func TestExplain(t *testing.T) {
	r := settled(settings(), first)
	node := Node{Draining: true, Unhealthy: "worker 1 is stuck"}
	frontends := map[netip.Addr][]Frontend{first: {{Service: "default/web"}}}
	r.Decide(&node, frontends, begin)
	var got []string
	for _, c := range r.Explain(first, &node, frontends[first], begin) {
		text := c.String()
		if !c.Met {
			text = "NOT " + text + ": " + c.Detail
		}
		got = append(got, text)
	}
	want := []string{
		"allowed", "not stopping", "NOT not drained: weir drain self", "synced", "NOT healthy: worker 1 is stuck", "eligible",
		"NOT programmed: a frontend of Service default/web", "NOT served: no Service on it has an endpoint",
		"NOT settled: for 1s after all others are met", "within the limit",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// An address without a frontend, an address beyond the limit, and an address that is announced
// for a while without endpoints are explained as they were decided.
func TestExplainSpecialCases(t *testing.T) {
	s := settings()
	s.MaxAddresses, s.EmptyFor = 1, 5*time.Second
	r := settled(s, second)
	r.Decide(&Node{}, served(first, second), begin)
	at := begin.Add(time.Minute)
	r.Decide(&Node{}, served(first, second), at)
	if c := firstUnmet(r.Explain(first, &Node{}, served(first)[first], at)); c.Reason != TooMany || c.Detail == "" {
		t.Errorf("beyond the limit: %+v", c)
	}
	if c := firstUnmet(r.Explain(sixth, &Node{}, nil, at)); c.Reason != NotProgrammed || c.Detail != "no frontend has this address" {
		t.Errorf("without a frontend: %+v", c)
	}
	none := map[netip.Addr][]Frontend{second: {{Service: "default/web", Programmed: true}}}
	r.Decide(&Node{}, none, at)
	list := r.Explain(second, &Node{}, none[second], at)
	if c := firstUnmet(list); c.Reason != Announced || !strings.Contains(list[NotServed-1].Detail, "announced until") {
		t.Errorf("empty everywhere: %+v", list)
	}
}
