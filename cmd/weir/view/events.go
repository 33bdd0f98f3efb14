package view

import (
	"fmt"
	"io"
	"strings"

	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/cmd/weir/event"
)

// Events writes events as a table, the last at the end.
func Events(w io.Writer, l *api.EventList) error {
	b := &strings.Builder{}
	if len(l.Events) == 0 {
		b.WriteString("No event\n")
	} else {
		t := table(b)
		row(t, "LAST", "COUNT", "KIND", "SUBJECT", "TEXT")
		for i := range l.Events {
			e := &l.Events[i]
			row(t, e.Last.Local().Format("2006-01-02 15:04:05"), repeats(e), string(e.Kind), dash(e.Service+e.Object), e.Text)
		}
		t.Flush()
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// repeats is the count of an event, with the time over which it has repeated.
func repeats(e *event.Event) string {
	if e.Count <= 1 {
		return "1"
	}
	return fmt.Sprintf("%d in %s", e.Count, Age(e.Last.Sub(e.First)))
}

// Event writes an event as a line.
func Event(w io.Writer, e *event.Event) error {
	times := ""
	if e.Count > 1 {
		times = " (" + repeats(e) + ")"
	}
	_, err := fmt.Fprintln(w, printable(fmt.Sprintf("%s %s %s%s %s", e.Last.Local().Format("15:04:05.000"), e.Kind, dash(e.Service+e.Object), times, e.Text)))
	return err
}
