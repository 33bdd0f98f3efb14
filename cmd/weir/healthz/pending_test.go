package healthz

import (
	"testing"
	"time"
)

// A late update is a problem long before it fails a probe. Progress of any kind, be it slow, is
// a reason to wait.
func TestALateUpdateIsNotAStuckOne(t *testing.T) {
	var p Pending
	now := time.Unix(1000, 0)
	expect := func(when string, at time.Time, late, stuck bool) {
		t.Helper()
		if got := p.Late(at) != ""; got != late {
			t.Errorf("%s: late %v (%s)", when, got, p.Late(at))
		}
		if got := p.Stuck(at) != ""; got != stuck {
			t.Errorf("%s: stuck %v (%s)", when, got, p.Stuck(at))
		}
	}
	expect("nothing is pending", now.Add(24*time.Hour), false, false)
	p.Begin(now)
	expect("in time", now.Add(lateAfter), false, false)
	expect("late", now.Add(lateAfter+time.Second), true, false)
	expect("without progress", now.Add(stuckAfter), true, false)
	expect("without progress for very long", now.Add(2*stuckAfter), true, true)
	for range 10 {
		now = now.Add(stuckAfter)
		p.Step(now)
		expect("slow progress", now, true, false)
	}
	if p.Age(now) != 10*stuckAfter {
		t.Errorf("age %s", p.Age(now))
	}
	p.Published(now)
	p.End()
	expect("published", now.Add(24*time.Hour), false, false)
	if !p.Last().Equal(now) || p.Age(now.Add(time.Hour)) != 0 {
		t.Errorf("last %s, age %s", p.Last(), p.Age(now))
	}
}

// The nodes of a fleet have the same update, and do not restart together.
func TestTheTimeUntilARestartDiffersBetweenNodes(t *testing.T) {
	now := time.Unix(1000, 0)
	at, stuck := now.Add(stuckAfter+stuckAfter/2), 0
	for range 200 {
		var p Pending
		p.Begin(now)
		if p.Stuck(at) != "" {
			stuck++
		}
	}
	if stuck < 40 || stuck > 160 {
		t.Errorf("of 200 nodes %d restart in the first half of the time", stuck)
	}
}
