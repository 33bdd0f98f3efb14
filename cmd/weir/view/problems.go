package view

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/cmd/weir/problem"
)

// maxShown is how many problems the text of a status has; Problems has
// them all.
const maxShown = 20

// renderProblems shows errors and warnings, and counts the rest.
func renderProblems(b *strings.Builder, s *api.Status) {
	var shown []problem.Problem
	for _, p := range s.Problems {
		if p.Severity != problem.Note && len(shown) < maxShown {
			shown = append(shown, p)
		}
	}
	if len(shown) > 0 {
		b.WriteByte('\n')
		problemTable(b, shown)
	}
	if more := len(s.Problems) + s.ProblemsLeftOut - len(shown); more > 0 {
		fmt.Fprintf(b, "\n%s more: weir status --problems\n", plural(more, "problem or note", "problems and notes"))
	}
}

// Problems writes all problems of a status as a table.
func Problems(w io.Writer, s *api.Status) error {
	b := &strings.Builder{}
	if len(s.Problems) == 0 {
		b.WriteString("No problems\n")
	} else {
		problemTable(b, s.Problems)
	}
	if s.ProblemsLeftOut > 0 {
		fmt.Fprintf(b, "\n%d more are counted, not listed:\n", s.ProblemsLeftOut)
		for _, d := range problem.Kinds {
			if n := s.ProblemCounts[d.Kind]; n > 0 {
				fmt.Fprintf(b, "  %s %d\n", d.Kind, n)
			}
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func problemTable(b *strings.Builder, list []problem.Problem) {
	t := table(b)
	row(t, "PROBLEM", "KIND", "SINCE", "OBJECT", "FIELD", "REASON")
	for _, p := range list {
		row(t, string(p.Severity), string(p.Kind), p.Since.Format(time.RFC3339), printable(p.Object), dash(printable(p.Field)), printable(p.Reason))
	}
	t.Flush()
}
