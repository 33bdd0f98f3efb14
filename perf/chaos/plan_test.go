package chaos

import (
	"testing"
	"time"

	"github.com/weirlb/weir/perf/netlab/workload"
)

// A reset belongs to a fault that is over if its client could not hear of it before: the exchange
// was under way then, and other faults have held it up since.
func TestAResetIsExplainedByAFaultThatIsOver(t *testing.T) {
	const wait = 5 * time.Second
	start := time.Now()
	at := func(s int) time.Time { return start.Add(time.Duration(s) * time.Second) }
	resets := &fault{name: "resets", explains: func(f *failure) bool { return f.kind == workload.KindReset }}
	holds := &fault{name: "holds", holdsUp: func(*service) bool { return true }}
	for name, c := range map[string]struct {
		held       []activity
		begun, end int
		kind       string
		want       bool
	}{
		"during the fault":             {begun: 1, end: 2, want: true},
		"heard at the next segment":    {begun: 1, end: 14, want: true},
		"nothing held it up":           {begun: 1, end: 40},
		"held up ever since":           {held: []activity{{holds, at(12), at(35)}}, begun: 1, end: 38, want: true},
		"held up, and calm before":     {held: []activity{{holds, at(20), at(35)}}, begun: 1, end: 38},
		"held up, and calm afterwards": {held: []activity{{holds, at(12), at(25)}}, begun: 1, end: 38},
		"begun later":                  {held: []activity{{holds, at(12), at(59)}}, begun: 50, end: 58},
		"of another kind":              {held: []activity{{holds, at(12), at(35)}}, begun: 1, end: 38, kind: workload.KindTimeout + "x"},
		"ended before the fault":       {begun: -9, end: -1},
	} {
		t.Run(name, func(t *testing.T) {
			l := &faultLog{past: append([]activity{{resets, at(0), at(10)}}, c.held...)}
			f := &failure{kind: workload.KindReset, service: &service{}, begun: at(c.begun), ended: at(c.end)}
			if c.kind != "" {
				f.kind = c.kind
			}
			if got := l.explanation(f, wait); (got != nil) != c.want {
				t.Errorf("explained: %v, want %v", got != nil, c.want)
			}
		})
	}
}
