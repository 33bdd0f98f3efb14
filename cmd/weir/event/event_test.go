package event

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"
)

func newRing() (*Ring, *bytes.Buffer) {
	var out bytes.Buffer
	return NewRing(slog.New(slog.NewTextHandler(&out, nil))), &out
}

var start = time.Unix(1_800_000_000, 0)

func TestRepetitionsAreCounted(t *testing.T) {
	r, out := newRing()
	flap := func(at time.Duration, text string) {
		r.addAt(New{Kind: EndpointChanged, Service: "a/b", Identity: "10.0.0.1:80", Text: text}, start.Add(at))
	}
	flap(0, "ready")
	r.addAt(New{Kind: TierChanged, Service: "a/b", Text: "other tier"}, start.Add(time.Second))
	for i := range 300 {
		flap(time.Duration(i)*time.Second/10, fmt.Sprint("change ", i))
	}
	list, last := r.List(&Filter{})
	if len(list) != 2 || last != 302 {
		t.Fatalf("%d, last %d: %+v", len(list), last, list)
	}
	e := list[1]
	if e.Count != 301 || e.Text != "change 299" || !e.First.Equal(start) || !e.Last.Equal(start.Add(299*time.Second/10)) || e.Number != 302 {
		t.Errorf("%+v", e)
	}
	if n := strings.Count(out.String(), "event=endpoint-changed"); n != 1 {
		t.Errorf("%d lines in the log:\n%s", n, out)
	}
	flap(2*time.Minute, "much later")
	if !strings.Contains(out.String(), `msg="much later" event=endpoint-changed service=a/b count=302 since=`) {
		t.Errorf("the log does not summarise:\n%s", out)
	}
	flap(time.Hour, "another time")
	if list, _ := r.List(&Filter{Kind: EndpointChanged}); len(list) != 2 || list[1].Count != 1 {
		t.Errorf("%+v", list)
	}
}

// A flood of a kind leaves the events of other kinds in the ring.
func TestFloodsLeaveOthersInTheRing(t *testing.T) {
	r, out := newRing()
	r.addAt(New{Kind: InterfaceAbsent, Object: "Interface eth1", Text: "gone"}, start)
	for i := range 100_000 {
		r.addAt(New{Kind: EndpointAdded, Service: fmt.Sprint("a/", i), Text: "added"}, start)
	}
	list, _ := r.List(&Filter{})
	if len(list) != kindBurst+2 || list[0].Kind != InterfaceAbsent {
		t.Fatalf("%d events, the first %+v", len(list), list[0])
	}
	if e := list[len(list)-1]; e.Count != 100_000-kindBurst || e.Service != "" || !strings.HasPrefix(e.Text, "more events of this kind") {
		t.Errorf("%+v", e)
	}
	if n := strings.Count(out.String(), "\n"); n != kindBurst+2 {
		t.Errorf("%d lines in the log", n)
	}
}

// Memory is bounded by number and length of the events.
func TestRingIsBounded(t *testing.T) {
	r, _ := newRing()
	long := strings.Repeat("é", 1<<14)
	for i := range 3 * Size {
		r.addAt(New{Kind: TierChanged, Service: fmt.Sprint(i, long), Object: long, Identity: long, Text: long}, start.Add(time.Duration(i)*time.Second))
	}
	list, last := r.List(&Filter{})
	if len(list) != Size || len(r.known) != Size || last != 3*Size || list[0].Number != 2*Size+1 {
		t.Fatalf("%d events, %d known, last %d, first %d", len(list), len(r.known), last, list[0].Number)
	}
	for _, e := range list {
		if len(e.Text) > maxText || len(e.Service) > maxText || len(e.Object) > maxText || !strings.HasSuffix(e.Text, "é...") {
			t.Fatalf("%d, %d, %d bytes", len(e.Text), len(e.Service), len(e.Object))
		}
	}
}

func TestFilterOfEvents(t *testing.T) {
	r, _ := newRing()
	for i := range 10 {
		r.addAt(New{Kind: []Kind{TierChanged, Reload}[i%2], Service: fmt.Sprint("a/", i/2), Text: "x"}, start.Add(time.Duration(i)*time.Hour))
	}
	for _, tt := range []struct {
		f    Filter
		want int
	}{
		{Filter{}, 10},
		{Filter{Kind: Reload}, 5},
		{Filter{Service: "a/1"}, 2},
		{Filter{Kind: Reload, Service: "a/1"}, 1},
		{Filter{Since: start.Add(7 * time.Hour)}, 3},
		{Filter{After: 6}, 4},
		{Filter{After: 10}, 0},
		{Filter{Limit: 2}, 2},
	} {
		list, _ := r.List(&tt.f)
		if len(list) != tt.want {
			t.Errorf("%+v: %d events, want %d", tt.f, len(list), tt.want)
		}
	}
	if list, _ := r.List(&Filter{Limit: 2}); list[0].Number != 9 || list[1].Number != 10 {
		t.Errorf("not the last two: %+v", list)
	}
}
