package problem

import (
	"bytes"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"
)

func newRegistry() (*Registry, *bytes.Buffer) {
	var out bytes.Buffer
	return NewRegistry(slog.New(slog.NewTextHandler(&out, nil))), &out
}

func TestProblemKeepsItsTimeUntilItIsTakenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, log := newRegistry()
		web := Service("default", "web")
		start := time.Now()
		r.Set("program", web, New(ProtectedPort, "spec.ports[0]", "port 22 is protected"))
		time.Sleep(time.Minute)
		r.Set("program", web, New(ProtectedPort, "spec.ports[0]", "port 22 is protected"), New(ForwardingMode, "", "nat is used in place of ipip"))
		r.Set("conflicts", web, New(FrontendConflict, "", "held by Service a/one"))

		list, more := r.List(10)
		if len(list) != 3 || more != 0 {
			t.Fatalf("%d and %d more: %v", len(list), more, list)
		}
		if list[0].Kind != FrontendConflict || list[2].Severity != Warning {
			t.Errorf("not the worst first: %v", list)
		}
		if list[1].Kind != ProtectedPort || !list[1].Since.Equal(start) || list[0].Since.Equal(start) {
			t.Errorf("since: %v", list)
		}
		if n := strings.Count(log.String(), "port 22 is protected"); n != 1 {
			t.Errorf("logged %d times:\n%s", n, log)
		}

		r.Set("program", web)
		if list := r.Of(web); len(list) != 1 || list[0].Kind != FrontendConflict {
			t.Errorf("after what the program said is taken back: %v", list)
		}
		if n := r.Counts(); n[ProtectedPort] != 0 || n[FrontendConflict] != 1 {
			t.Errorf("counts %v", n)
		}
		if !strings.Contains(log.String(), "no longer: port 22 is protected") {
			t.Errorf("the end is not logged:\n%s", log)
		}
	})
}

func TestProblemWithAnotherReasonGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, log := newRegistry()
		start := time.Now()
		r.Set("source", "Weir", New(APIServer, "services", "connection refused"))
		time.Sleep(time.Hour)
		r.Set("source", "Weir", New(APIServer, "services", "no route to host"))
		if list := r.Of("Weir"); len(list) != 1 || !list[0].Since.Equal(start) || list[0].Reason != "no route to host" {
			t.Errorf("%v", list)
		}
		if strings.Contains(log.String(), "no longer") || !strings.Contains(log.String(), "no route to host") {
			t.Errorf("log:\n%s", log)
		}
	})
}

func TestProblemsAreBounded(t *testing.T) {
	r, log := newRegistry()
	const n = 3 * maxPerPart
	var all []Problem
	for i := range n {
		all = append(all, New(Manifest, "", "fault %d", i))
	}
	r.Set("manifests", "File x", all...)
	list, more := r.List(10)
	if len(list) != 10 || more != n-10 {
		t.Errorf("%d and %d more", len(list), more)
	}
	if got := r.Counts()[Manifest]; got != n {
		t.Errorf("counted %d", got)
	}
	if lines := strings.Count(log.String(), "\n"); lines > 2*logBurst {
		t.Errorf("%d lines in the log", lines)
	}
	r.Set("manifests", "File x")
	if list, more := r.List(10); len(list) != 0 || more != 0 {
		t.Errorf("%d and %d more after the end", len(list), more)
	}
	if got := r.Counts()[Manifest]; got != 0 {
		t.Errorf("counted %d after the end", got)
	}
}

// An unknown kind must not make a new series.
func TestKindsAreBounded(t *testing.T) {
	r, _ := newRegistry()
	r.Set("x", "Weir", Problem{Kind: "made up", Reason: "x"})
	if list, _ := r.List(1); list[0].Kind != "other" || list[0].Severity != Warning {
		t.Errorf("%v", list)
	}
	for _, d := range Kinds {
		if d.Severity.rank() < 0 || d.Text == "" {
			t.Errorf("%+v", d)
		}
	}
}

// Whatever the history, the Registry holds what was set last.
func TestRegistryAgreesWithAModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := NewRegistry(slog.New(slog.DiscardHandler))
		model := map[string]map[string]bool{} // part and object, to problems
		changes := 0
		r.OnChange(func(string) { changes++ })
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			part, object := rapid.SampledFrom([]string{"p", "q"}).Draw(t, "part"), rapid.SampledFrom([]string{"a", "b"}).Draw(t, "object")
			var set []Problem
			next := map[string]bool{}
			for range rapid.IntRange(0, 3).Draw(t, "n") {
				p := New(rapid.SampledFrom([]Kind{Manifest, NoHints}).Draw(t, "kind"), rapid.SampledFrom([]string{"", "f"}).Draw(t, "field"),
					"%d", rapid.IntRange(0, 2).Draw(t, "reason"))
				set = append(set, p)
				next[fmt.Sprint(p.Kind, p.Field, p.Reason)] = true
			}
			before := changes
			r.Set(part, object, set...)
			if same := maps.Equal(model[part+object], next); same == (changes > before) {
				t.Fatalf("changed told: %v, nothing changed: %v", changes > before, same)
			}
			model[part+object] = next
		}
		counts := map[Kind]int{}
		for _, object := range []string{"a", "b"} {
			var got, want []string
			for _, p := range r.Of(object) {
				got = append(got, fmt.Sprint(p.Kind, p.Field, p.Reason))
				counts[p.Kind]++
				if p.Since.IsZero() {
					t.Fatalf("%v has no time", p)
				}
			}
			for _, part := range []string{"p", "q"} {
				want = slices.AppendSeq(want, maps.Keys(model[part+object]))
			}
			slices.Sort(got)
			slices.Sort(want)
			if !slices.Equal(got, want) {
				t.Fatalf("%s: got %v, want %v", object, got, want)
			}
		}
		for k, n := range r.Counts() {
			if counts[k] != n {
				t.Fatalf("%s: counted %d, has %d", k, n, counts[k])
			}
		}
	})
}

// Two callers ask for the problems of a part. The one that asks first does not
// replace the answer of the other.
func TestRefreshKeepsTheNewerAnswer(t *testing.T) {
	r := NewRegistry(slog.New(slog.DiscardHandler))
	asked, answer := make(chan bool), make(chan bool)
	var callers sync.WaitGroup
	callers.Go(func() {
		r.Refresh("a", func() []Problem {
			asked <- true
			<-answer
			return []Problem{{Kind: Node, Object: "Node n", Reason: "older"}}
		})
	})
	<-asked
	callers.Go(func() {
		r.Refresh("a", func() []Problem { return []Problem{{Kind: Node, Object: "Node n", Reason: "newer"}} })
	})
	time.Sleep(10 * time.Millisecond) // the second caller would be through by now
	answer <- true
	callers.Wait()
	if list, _ := r.List(9); len(list) != 1 || list[0].Reason != "newer" {
		t.Errorf("problems are %+v", list)
	}
}
