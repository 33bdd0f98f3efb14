package conntrack

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/weirlb/weir/conntrack/flowstate"
)

var updatePredicates = flag.Bool("update", false, "write testdata/predicates.txt")

// The golden file shows every answer: a change of one is a change of a line there.
func TestPredicates(t *testing.T) {
	var b strings.Builder
	tw := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "state\tand\topen\thalf-open\tended\ta SYN\tport reusable\tmay be dead\tevicted: fresh\tidle 2 s\tidle 5 min\tport goes: idle 2 s\tclient 10 s\tidle 10 s\ttimeout")
	tab := openHeap(t, Config{MaxFlows: 16, Workers: 1, MaxEndpoints: 8})
	for s := flowstate.SynSent; s < flowstate.Count; s++ {
		for _, and := range []struct {
			name string
			bits uint32
		}{
			{"", 0}, {"client only", flowstate.ClientOnly}, {"client only, FIN", flowstate.ClientOnly | flowstate.FinClient},
			{"unconfirmed", flowstate.Unconfirmed}, {"doubted", flowstate.Doubted}, {"heard", flowstate.Heard},
		} {
			if !occurs(s, and.bits) {
				continue
			}
			w := uint32(s) | and.bits
			fmt.Fprintf(tw, "%v\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%v\t%v\t%v\t%v\n", s, and.name, yes(flowstate.CountsAsOpen(w)), yes(flowstate.CountsAsHalfOpen(w)),
				yes(flowstate.Ended(w)), effectOfSYN(s, w), yes(flowstate.PortReusable(w)), yes(flowstate.MayBeDead(w, flowstate.DeadTicks)),
				evictionOf(w, 0, 0, 0), evictionOf(w, 2*TicksPerSecond, 2*TicksPerSecond, 0), evictionOf(w, flowstate.DeadTicks, flowstate.DeadTicks, 0),
				portOf(w, 2*TicksPerSecond, 2*TicksPerSecond), portOf(w, 0, flowstate.SilentTicks), portOf(w, flowstate.SilentTicks, flowstate.SilentTicks),
				time.Duration(tab.timeout(w))*time.Second/TicksPerSecond)
		}
	}
	tw.Flush()
	const file = "testdata/predicates.txt"
	var got strings.Builder
	for line := range strings.Lines(b.String()) {
		got.WriteString(strings.TrimRight(line, " \n") + "\n")
	}
	if *updatePredicates {
		if err := os.WriteFile(file, []byte(got.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil || got.String() != string(want) {
		t.Errorf("%s differs (%v): go test ./conntrack -run TestPredicates -update\n%s", file, err, got.String())
	}
}

func occurs(s flowstate.State, and uint32) bool {
	switch and {
	case flowstate.ClientOnly | flowstate.FinClient:
		return s == flowstate.FinWait || s == flowstate.Close
	case flowstate.Unconfirmed:
		return s == flowstate.Established || s == flowstate.FinWait || s == flowstate.CloseWait
	case flowstate.Doubted:
		return s == flowstate.Established || s == flowstate.FinWait || s == flowstate.LastAck
	case flowstate.Heard:
		return s == flowstate.Replied || s == flowstate.Stream
	case flowstate.ClientOnly:
		return s == flowstate.SynSent || s == flowstate.Established || s >= flowstate.Close && s != flowstate.Replied && s != flowstate.SCTPCookieEchoed
	}
	return true
}

// portOf is the class of a port that another connection asks for.
func portOf(s, idle, client uint32) PortClass {
	return reuseOf(s|flowstate.Published, flowstate.Ended(s), idle, client)
}

func yes(b bool) string {
	if b {
		return "yes"
	}
	return "-"
}

func effectOfSYN(s flowstate.State, w uint32) string {
	switch {
	case s > flowstate.Close:
		return "-"
	case flowstate.SYNBeginsAnew(w):
		return "new entry"
	case flowstate.SYNReopens(w):
		return "in place"
	}
	return "nothing"
}

func (c evictionClass) String() string {
	return [...]string{"half-open", "ended", "brief", "idle", "young", "unproven", "doubted",
		"silent 80 s", "silent 40 s", "silent 20 s", "silent 10 s", "never"}[c]
}
