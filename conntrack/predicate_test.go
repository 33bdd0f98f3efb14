package conntrack

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
	"text/tabwriter"
	"time"
)

var updatePredicates = flag.Bool("update", false, "write testdata/predicates.txt")

// The golden file shows every answer: a change of one is a change of a line there.
func TestPredicates(t *testing.T) {
	var b strings.Builder
	tw := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "state\tand\topen\thalf-open\tended\ta SYN\tport reusable\tmay be dead\tevicted: fresh\tidle 2 s\tidle 5 min\tport goes: idle 2 s\tclient 10 s\tidle 10 s\ttimeout")
	tab := openHeap(t, Config{MaxFlows: 16, Workers: 1, MaxEndpoints: 8})
	for s := StateSynSent; s < numStates; s++ {
		for _, and := range []struct {
			name string
			bits uint32
		}{
			{"", 0}, {"client only", clientOnly}, {"client only, FIN", clientOnly | finClient},
			{"unconfirmed", unconfirmed}, {"doubted", doubted}, {"heard", heard},
		} {
			if !occurs(s, and.bits) {
				continue
			}
			w := uint32(s) | and.bits
			fmt.Fprintf(tw, "%v\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%v\t%v\t%v\t%v\n", s, and.name, yes(countsAsOpen(w)), yes(countsAsHalfOpen(w)),
				yes(ended(w)), effectOfSYN(s, w), yes(portReusable(w)), yes(mayBeDead(w, deadTicks)),
				evictionOf(w, 0, 0, 0), evictionOf(w, 2*TicksPerSecond, 2*TicksPerSecond, 0), evictionOf(w, deadTicks, deadTicks, 0),
				portOf(w, 2*TicksPerSecond, 2*TicksPerSecond), portOf(w, 0, silentTicks), portOf(w, silentTicks, silentTicks),
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

func occurs(s State, and uint32) bool {
	switch and {
	case clientOnly | finClient:
		return s == StateFinWait || s == StateClose
	case unconfirmed:
		return s == StateEstablished || s == StateFinWait || s == StateCloseWait
	case doubted:
		return s == StateEstablished || s == StateFinWait || s == StateLastAck
	case heard:
		return s == StateReplied || s == StateStream
	case clientOnly:
		return s == StateSynSent || s == StateEstablished || s >= StateClose && s != StateReplied && s != StateSCTPCookieEchoed
	}
	return true
}

// portOf is the class of a port that another connection asks for.
func portOf(s, idle, client uint32) PortClass {
	return reuseOf(s|published, ended(s), idle, client)
}

func yes(b bool) string {
	if b {
		return "yes"
	}
	return "-"
}

func effectOfSYN(s State, w uint32) string {
	switch {
	case s > StateClose:
		return "-"
	case synBeginsAnew(w):
		return "new entry"
	case synReopens(w):
		return "in place"
	}
	return "nothing"
}

func (c evictionClass) String() string {
	return [...]string{"half-open", "ended", "brief", "idle", "young", "unproven", "doubted",
		"silent 80 s", "silent 40 s", "silent 20 s", "silent 10 s", "never"}[c]
}
