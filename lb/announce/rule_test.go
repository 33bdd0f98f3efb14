package announce

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

var (
	first  = netip.MustParseAddr("203.0.113.10")
	second = netip.MustParseAddr("203.0.113.11")
	sixth  = netip.MustParseAddr("2001:db8::10")
	begin  = time.Unix(1_800_000_000, 0)
)

func settings() Settings {
	return Settings{
		Allow:  []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24"), netip.MustParsePrefix("2001:db8::/64")},
		Settle: time.Second,
	}
}

// served is an address with a frontend that is served.
func served(addresses ...netip.Addr) map[netip.Addr][]Frontend {
	out := map[netip.Addr][]Frontend{}
	for _, a := range addresses {
		out[a] = []Frontend{{Service: "default/web", Programmed: true, Endpoints: 2}}
	}
	return out
}

// settled is a rule that has announced the addresses.
func settled(s Settings, addresses ...netip.Addr) *Rule {
	r := &Rule{}
	r.SetSettings(s)
	r.Decide(&Node{}, served(addresses...), begin.Add(-time.Minute))
	r.Decide(&Node{}, served(addresses...), begin)
	return r
}

// Each condition by itself ends an announcement at once, with its reason.
func TestReason(t *testing.T) {
	list := func(f ...Frontend) map[netip.Addr][]Frontend { return map[netip.Addr][]Frontend{first: f} }
	local := Frontend{Service: "default/local", Programmed: true, Elsewhere: true}
	for name, c := range map[string]struct {
		node      Node
		frontends map[netip.Addr][]Frontend
		want      Reason
		detail    string
	}{
		"served":       {want: Announced},
		"stopping":     {node: Node{Stopping: true, Draining: true}, want: Stopping},
		"draining":     {node: Node{Draining: true, Unhealthy: "worker 1 is stuck"}, want: Draining},
		"not synced":   {node: Node{NotSynced: true}, want: NotSynced},
		"unhealthy":    {node: Node{Unhealthy: "worker 1 is stuck"}, want: Unhealthy, detail: "worker 1 is stuck"},
		"not eligible": {node: Node{NotEligible: "Node a has the label x"}, want: NotEligible, detail: "Node a has the label x"},
		"a frontend without room": {
			frontends: list(Frontend{Service: "default/web", Programmed: true, Endpoints: 1}, Frontend{Service: "default/dns", Endpoints: 1}),
			want:      NotProgrammed, detail: "a frontend of Service default/dns",
		},
		"no endpoint anywhere":     {frontends: list(Frontend{Service: "default/web", Programmed: true}), want: NotServed},
		"local, endpoints away":    {frontends: list(local), want: NotServed, detail: "Service default/local has endpoints on other nodes only"},
		"local away, another here": {frontends: list(local, Frontend{Service: "default/web", Programmed: true, Endpoints: 1}), want: NotServed},
		"local, a port here": {
			frontends: list(local, Frontend{Service: "default/local", Programmed: true, Endpoints: 1}), want: Announced,
		},
		"empty, another served": {
			frontends: list(Frontend{Service: "default/web", Programmed: true}, Frontend{Service: "default/dns", Programmed: true, Endpoints: 1}),
			want:      Announced,
		},
		"not allowed": {frontends: served(netip.MustParseAddr("198.51.100.1")), want: NotAllowed},
	} {
		t.Run(name, func(t *testing.T) {
			if c.frontends == nil {
				c.frontends = served(first)
			}
			out := settled(settings(), first).Decide(&c.node, c.frontends, begin.Add(time.Minute))
			d := out.Decisions[0]
			if d.Reason != c.want || c.detail != "" && d.Detail != c.detail {
				t.Errorf("%v, %q, want %v, %q", d.Reason, d.Detail, c.want, c.detail)
			}
			if (len(out.Routes) == 1) != (c.want == Announced) {
				t.Errorf("routes %v with reason %v", out.Routes, d.Reason)
			}
		})
	}
}

func TestReasonsHaveNames(t *testing.T) {
	if len(reasons) != int(TooMany)+1 || slices.Contains(reasons[:], "") {
		t.Errorf("reasons %q", reasons)
	}
	if len(conditions) != len(reasons) || slices.Contains(conditions[1:], "") {
		t.Errorf("conditions %q", conditions)
	}
}

// An address is announced after it was well for the time to settle, and each fall beyond three
// in five minutes doubles that time.
func TestSettling(t *testing.T) {
	r := &Rule{}
	r.SetSettings(settings())
	now := begin
	none := map[netip.Addr][]Frontend{first: {{Service: "default/web", Programmed: true}}}
	held := uint64(0)
	for fall, want := range []time.Duration{1, 1, 1, 1, 2, 4, 8, 16, 32, 60, 60} {
		if want > 1 {
			held++
		}
		want *= time.Second
		out := r.Decide(&Node{}, served(first), now)
		if text := fmt.Sprintf(", withdrawn %d times in 5 minutes", fall); r.Held() != held || strings.HasSuffix(out.Decisions[0].Detail, text) != (want > time.Second) {
			t.Fatalf("after %d falls: held %d times, want %d: %s", fall, r.Held(), held, out.Decisions[0].Detail)
		}
		if d := out.Decisions[0]; d.Reason != Settling || !out.Next.Equal(now.Add(want)) {
			t.Fatalf("after %d falls: %v until %v, want %v", fall, d.Reason, out.Next.Sub(now), want)
		}
		now = now.Add(want)
		if out = r.Decide(&Node{}, served(first), now); out.Decisions[0].Reason != Announced || !out.Next.IsZero() {
			t.Fatalf("after %d falls and %v: %+v", fall, want, out)
		}
		if out = r.Decide(&Node{}, none, now); out.Decisions[0].Reason != NotServed {
			t.Fatalf("without an endpoint: %+v", out)
		}
	}
	now = now.Add(flapWindow + time.Second)
	if out := r.Decide(&Node{}, served(first), now); !out.Next.Equal(now.Add(time.Second)) {
		t.Errorf("after the window: %v", out.Next.Sub(now))
	}
}

// A drain is no fall of the address.
func TestDrainIsNoFall(t *testing.T) {
	r := settled(settings(), first)
	now := begin
	for range 10 {
		if out := r.Decide(&Node{Draining: true}, served(first), now); len(out.Routes) != 0 {
			t.Fatalf("drained: %v", out.Routes)
		}
		if out := r.Decide(&Node{}, served(first), now); !out.Next.Equal(now.Add(time.Second)) {
			t.Fatalf("settles for %v", out.Next.Sub(now))
		}
		now = now.Add(time.Second)
		r.Decide(&Node{}, served(first), now)
	}
}

// A packet path that fails and recovers again and again moves flows of all nodes each time: its
// addresses settle ever longer.
func TestFailuresOfTheNodeAreFalls(t *testing.T) {
	r := settled(settings(), first)
	now := begin
	for fall, want := range []time.Duration{1, 1, 1, 2, 4, 8} {
		want *= time.Second
		if out := r.Decide(&Node{Unhealthy: "worker 1 is stuck"}, served(first), now); len(out.Routes) != 0 {
			t.Fatalf("a stuck worker: %v", out.Routes)
		}
		if out := r.Decide(&Node{}, served(first), now); !out.Next.Equal(now.Add(want)) {
			t.Fatalf("after %d failures it settles for %v, want %v", fall+1, out.Next.Sub(now), want)
		}
		now = now.Add(want)
		r.Decide(&Node{}, served(first), now)
	}
}

// An address without endpoints on any node stays announced for Settings.EmptyFor.
func TestEmptyEverywhere(t *testing.T) {
	s := settings()
	s.EmptyFor = 5 * time.Second
	r := settled(s, first)
	none := map[netip.Addr][]Frontend{first: {{Service: "default/web", Programmed: true}}}
	out := r.Decide(&Node{}, none, begin)
	if len(out.Routes) != 1 || !out.Next.Equal(begin.Add(5*time.Second)) {
		t.Fatalf("at once: %+v", out)
	}
	if out = r.Decide(&Node{}, none, begin.Add(5*time.Second)); len(out.Routes) != 0 {
		t.Errorf("after EmptyFor: %+v", out)
	}
	r = settled(s, first)
	away := map[netip.Addr][]Frontend{first: {{Service: "default/web", Programmed: true, Elsewhere: true}}}
	if out = r.Decide(&Node{}, away, begin); len(out.Routes) != 0 {
		t.Errorf("other nodes have endpoints: %+v", out)
	}
}

// The limit refuses those that are not announced yet.
func TestLimit(t *testing.T) {
	s := settings()
	s.MaxAddresses = 1
	r := settled(s, second)
	r.Decide(&Node{}, served(first, second), begin)
	out := r.Decide(&Node{}, served(first, second), begin.Add(time.Minute))
	if a, b := out.Decisions[0].Reason, out.Decisions[1].Reason; a != TooMany || b != Announced {
		t.Errorf("%v, %v", a, b)
	}
	if out = r.Decide(&Node{}, served(first), begin.Add(time.Minute)); len(out.Routes) != 1 {
		t.Errorf("when there is room: %+v", out)
	}
}

// An aggregate is announced while any address in it is.
func TestAggregate(t *testing.T) {
	s := settings()
	s.Aggregate4, s.Aggregate6 = 24, 64
	r := settled(s, first, second, sixth)
	out := r.Decide(&Node{}, served(second, sixth), begin)
	var got []string
	for _, route := range out.Routes {
		got = append(got, route.Prefix.String())
	}
	if want := "203.0.113.0/24 2001:db8::/64"; strings.Join(got, " ") != want {
		t.Errorf("%q, want %s", got, want)
	}
}

// model decides from all that has ever happened, each time from the start.
type model struct {
	settings Settings
	steps    []step
}

type step struct {
	at        time.Time
	node      Node
	frontends map[netip.Addr][]Frontend
}

func (s *step) usable(a netip.Addr) bool {
	byService := map[string][]Frontend{}
	for _, f := range s.frontends[a] {
		if !f.Programmed {
			return false
		}
		byService[f.Service] = append(byService[f.Service], f)
	}
	any := false
	for _, list := range byService {
		here := slices.ContainsFunc(list, func(f Frontend) bool { return f.Endpoints > 0 })
		if !here && slices.ContainsFunc(list, func(f Frontend) bool { return f.Elsewhere }) {
			return false
		}
		any = any || here
	}
	return any
}

// announced replays the steps for an address.
func (m *model) announced(a netip.Addr) bool {
	if !slices.ContainsFunc(m.settings.Allow, func(p netip.Prefix) bool { return p.Contains(a) }) {
		return false
	}
	var falls []time.Time
	var well *time.Time
	on := false
	for i := range m.steps {
		s := &m.steps[i]
		switch node := s.node; {
		case !s.usable(a):
			if on && !node.Draining || on && len(s.frontends[a]) == 0 {
				falls = append(falls, s.at)
			}
			on, well = false, nil
		case node != (Node{}):
			if on && node.Unhealthy != "" {
				falls = append(falls, s.at)
			}
			on, well = false, nil
		default:
			if well == nil {
				well = &s.at
			}
			recent := 0
			for _, f := range falls {
				if s.at.Sub(f) < 5*time.Minute {
					recent++
				}
			}
			wait := m.settings.Settle
			for n := recent; n > 3; n-- {
				wait = min(2*wait, time.Minute)
			}
			on = on || s.at.Sub(*well) >= wait
		}
	}
	return on
}

// After any sequence of changes the rule agrees with the model, and nothing is announced that
// is not served.
func TestRuleAgreesWithModel(t *testing.T) {
	outside := netip.MustParseAddr("198.51.100.1")
	rapid.Check(t, func(t *rapid.T) {
		m := &model{settings: settings()}
		r := &Rule{}
		r.SetSettings(m.settings)
		now := begin
		for i := range rapid.IntRange(1, 60).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.SampledFrom([]int{0, 1, 300, 1000, 2500, 9000, 200_000}).Draw(t, "pause")) * time.Millisecond)
			s := step{at: now, frontends: map[netip.Addr][]Frontend{}}
			switch rapid.IntRange(0, 9).Draw(t, "node") {
			case 0:
				s.node.Draining = true
			case 1:
				s.node.Unhealthy = "a worker is stuck"
			}
			for _, a := range []netip.Addr{first, sixth, outside} {
				for f := range rapid.IntRange(0, 3).Draw(t, "frontends") {
					x := Frontend{Service: fmt.Sprint("s", f%2), Programmed: rapid.IntRange(0, 5).Draw(t, "programmed") > 0}
					if rapid.Bool().Draw(t, "endpoints") {
						x.Endpoints = 1
					} else {
						x.Elsewhere = rapid.Bool().Draw(t, "elsewhere")
					}
					s.frontends[a] = append(s.frontends[a], x)
				}
			}
			m.steps = append(m.steps, s)
			out := r.Decide(&s.node, s.frontends, now)
			checkExplained(t, r, &s, &out)
			for _, a := range []netip.Addr{first, sixth, outside} {
				has := slices.ContainsFunc(out.Routes, func(r Route) bool { return r.Prefix.Addr() == a })
				if has && (!s.usable(a) || a == outside) {
					t.Fatalf("step %d: %v is announced and not served: %+v", i, a, s.frontends[a])
				}
				if want := m.announced(a); has != want {
					t.Fatalf("step %d: %v announced: %v, the model says %v", i, a, has, want)
				}
			}
		}
	})
}
