package attempts

import (
	"testing"

	"pgregory.net/rapid"
)

func TestFailuresInARowEndWithAnAnswer(t *testing.T) {
	a := New(1 << 12)
	a.Refused(7, 1) // no number yet: nothing to count
	a.Assign(7)
	a.Refused(7, 10)
	a.Unanswered(7, 20)
	if got, want := a.Of(7), (Counts{Refused: 1, Unanswered: 1, InARow: 2, LastFailure: 20}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	a.Answered(7)
	if got, want := a.Of(7), (Counts{Answered: 1, Refused: 1, Unanswered: 1, LastFailure: 20}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	a.Assign(7) // of another endpoint
	if got := a.Of(7); got != (Counts{}) {
		t.Errorf("counts of the endpoint before: %+v", got)
	}
	a.Refused(1<<13, 1) // beyond the last
}

// Who only reads the counts, as a trace does, changes none.
func TestAViewCountsNothing(t *testing.T) {
	counts := New(10)
	counts.Assign(1)
	counts.Refused(1, 7)
	before, v := counts.Of(1), counts.View()
	v.Refused(1, 8)
	v.Unanswered(1, 8)
	v.Answered(1)
	if counts.Of(1) != before || v.Of(1) != before {
		t.Errorf("%+v, in the view %+v, want %+v", counts.Of(1), v.Of(1), before)
	}
	if (*Table)(nil).View() != nil {
		t.Error("no table has a view")
	}
}

func TestWorstAreThoseWithTheMostFailures(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, failed := New(1<<12), map[uint32]uint64{}
		for _, n := range rapid.SliceOf(rapid.Uint32Range(1, 3*chunkSize)).Draw(t, "failures") {
			if failed[n] == 0 && a.Of(n) == (Counts{}) {
				a.Assign(n)
			}
			a.Unanswered(n, 1)
			failed[n]++
		}
		limit := rapid.IntRange(1, 8).Draw(t, "limit")
		got := a.Worst(limit)
		if len(got) != min(limit, len(failed)) {
			t.Fatalf("%d of %d numbers", len(got), len(failed))
		}
		for i, w := range got {
			if w.Failed() != failed[w.Number] || i > 0 && got[i-1].Failed() < w.Failed() {
				t.Fatalf("%+v of %v", got, failed)
			}
			delete(failed, w.Number)
		}
		for n, count := range failed {
			if len(got) > 0 && count > got[len(got)-1].Failed() {
				t.Fatalf("number %d with %d failures is not among %+v", n, count, got)
			}
		}
	})
}

func TestCountingAllocatesNothing(t *testing.T) {
	a := New(1 << 12)
	a.Assign(5)
	if n := testing.AllocsPerRun(100, func() { a.Answered(5); a.Refused(5, 1); a.Unanswered(5, 2) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
