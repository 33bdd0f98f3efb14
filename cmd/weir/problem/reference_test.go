package problem

import (
	"fmt"
	"strings"
	"testing"

	"github.com/weirlb/weir/perf/golden"
)

const referenceHead = `# Problems

<!-- Written by go generate ./cmd/weir/problem. -->

Everything that Weir does not do as asked is a problem: an object, a field, a reason, a severity and a time.
All problems are in ` + "`weir status`, in the metric `weir_problems{kind}`" + ` and in the log. Problems of a Service are
also in ` + "`weir explain`" + `, and some are Events of the Service. The list is bounded: 1,000 problems per source and
object, 1,000 in a status, 10 lines per second in the log; the rest is counted.

`

// TestTableOfProblemsIsCurrent holds README.md to Kinds.
func TestTableOfProblemsIsCurrent(t *testing.T) {
	golden.File(t, "README.md", reference())
}

// reference is the table of problems as Markdown.
func reference() string {
	var b strings.Builder
	b.WriteString(referenceHead)
	b.WriteString("| Kind | Severity | Meaning | `explain` | Event |\n| --- | --- | --- | --- | --- |\n")
	for _, d := range Kinds {
		event, explain := "", ""
		if d.Event {
			event = "`" + d.Kind.EventReason() + "`"
		}
		if d.OfServices {
			explain = "yes"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s |\n", d.Kind, d.Severity, d.Text, explain, event)
	}
	return b.String()
}
