package problem

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the table")

// The table of ARCHITECTURE.md stands between these lines.
const (
	architecture = "../../../ARCHITECTURE.md"
	tableBegin   = "<!-- problems: written by go generate ./cmd/weir/problem -->\n"
	tableEnd     = "<!-- end of problems -->\n"
)

// TestTableOfProblemsIsCurrent holds ARCHITECTURE.md to Kinds.
func TestTableOfProblemsIsCurrent(t *testing.T) {
	data, err := os.ReadFile(architecture)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(data), tableBegin)
	_, after, ok2 := strings.Cut(rest, tableEnd)
	if !ok || !ok2 {
		t.Fatal("ARCHITECTURE.md has no place for the table")
	}
	var b strings.Builder
	b.WriteString("| Complaint (`kind`) | Severity | Stands for | `status`, metric, log | `explain` | Event |\n| --- | --- | --- | --- | --- | --- |\n")
	for _, d := range Kinds {
		event, explain := "", ""
		if d.Event {
			event = "`" + d.Kind.EventReason() + "`"
		}
		if d.OfServices {
			explain = "yes"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | yes | %s | %s |\n", d.Kind, d.Severity, d.Text, explain, event)
	}
	want := before + tableBegin + b.String() + tableEnd + after
	if want == string(data) {
		return
	}
	if !*update {
		t.Fatal("ARCHITECTURE.md is not current: run go generate")
	}
	if err := os.WriteFile(architecture, []byte(want), 0o644); err != nil {
		t.Fatal(err)
	}
}
