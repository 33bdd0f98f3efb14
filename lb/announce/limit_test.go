package announce

import (
	"fmt"
	"net/netip"
	"testing"
	"time"
)

// When the limit is reached the oldest Services are announced, whatever was announced before; no
// Service and no namespace has more than the part of it.
func TestLimitsGoByAge(t *testing.T) {
	s := settings()
	s.Settle, s.MaxAddresses, s.MaxPerNamespace, s.MaxPerService = 0, 4, 3, 2
	var r Rule
	r.SetSettings(s)
	list := map[netip.Addr][]Frontend{}
	add := func(address, namespace, service string, created int64) {
		list[netip.MustParseAddr(address)] = []Frontend{{
			Service: namespace + "/" + service, Namespace: namespace, Created: created, Programmed: true, Endpoints: 1,
		}}
	}
	announced := func() (out []string) {
		for _, d := range r.Decide(&Node{}, list, begin).Decisions {
			if d.Reason == Announced {
				out = append(out, d.Address.String())
			}
		}
		return out
	}
	for i := range 3 {
		add(fmt.Sprintf("203.0.113.%d", 10+i), "a", "filler", 300)
		add(fmt.Sprintf("203.0.113.%d", 20+i), "a", fmt.Sprint("more", i), 400)
	}
	if got := fmt.Sprint(announced()); got != "[203.0.113.10 203.0.113.11 203.0.113.20]" {
		t.Errorf("of a namespace: %s", got)
	}
	add("203.0.113.99", "b", "new", 500)
	if got := fmt.Sprint(announced()); got != "[203.0.113.10 203.0.113.11 203.0.113.20 203.0.113.99]" {
		t.Errorf("a namespace more: %s", got)
	}
	add("203.0.113.98", "c", "old", 100)
	if got := fmt.Sprint(announced()); got != "[203.0.113.10 203.0.113.11 203.0.113.20 203.0.113.98]" {
		t.Errorf("an older Service more: %s", got)
	}
}

// An address that comes and goes keeps its place at a full limit: the youngest does not come and go
// with it.
func TestAnAddressThatIsAwayForAMomentKeepsItsPlace(t *testing.T) {
	s := settings()
	s.MaxAddresses = 1
	var r Rule
	r.SetSettings(s)
	old := Frontend{Service: "a/old", Namespace: "a", Created: 1, Programmed: true, Endpoints: 1}
	young := Frontend{Service: "b/young", Namespace: "b", Created: 2, Programmed: true, Endpoints: 1}
	away := old
	away.Endpoints = 0
	now, changes, was := begin, 0, false
	decide := func(f Frontend) (reasons [2]Reason, next time.Time) {
		out := r.Decide(&Node{}, map[netip.Addr][]Frontend{first: {f}, second: {young}}, now)
		if has := out.Decisions[1].Reason == Announced; has != was {
			changes, was = changes+1, has
		}
		return [2]Reason{out.Decisions[0].Reason, out.Decisions[1].Reason}, out.Next
	}
	for range 20 {
		for range 10 {
			decide(old)
			now = now.Add(10 * time.Second)
		}
		decide(away)
		now = now.Add(10 * time.Second)
	}
	if changes > 0 {
		t.Errorf("the youngest came and went %d times", changes)
	}
	// Who stays away gives the place up, and takes it again when it is served.
	reasons, next := decide(away)
	if reasons != [2]Reason{NotServed, TooMany} || next.IsZero() {
		t.Fatalf("%v, next %v", reasons, next)
	}
	for now = next; now.Before(begin.Add(2*time.Hour)) && reasons[1] != Announced; now = next {
		if reasons, next = decide(away); next.IsZero() {
			break
		}
	}
	if reasons != [2]Reason{NotServed, Announced} || now.Sub(begin) > time.Hour {
		t.Errorf("%v at %v", reasons, now.Sub(begin))
	}
}
