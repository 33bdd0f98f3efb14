package drains

import (
	"strings"
	"testing"
	"time"

	"github.com/weirlb/weir/cmd/weir/translate"
)

// A drain that nobody ends is a problem, so that it is not forgotten.
func TestDrainsOfTheOperatorAreProblems(t *testing.T) {
	d := &Drains{node: "edge-1"}
	if list := d.Problems(); len(list) != 0 {
		t.Errorf("without a drain: %v", list)
	}
	now := time.Now()
	d.self.Store(&now)
	for _, name := range []string{"10.1.1.1:80", "10.1.1.2", "10.1.1.3", "10.1.1.4"} {
		e, _ := translate.ParseDrained(name)
		d.endpoints = append(d.endpoints, drained{e, now})
	}
	list := d.Problems()
	if len(list) != 2 || list[0].Object != "Node edge-1" || !strings.HasSuffix(list[1].Reason, "10.1.1.1:80, 10.1.1.2, 10.1.1.3 and 1 more") {
		t.Errorf("%+v", list)
	}
}

// Counts of all connections take a twentieth of the time at most, however many ask.
func TestCountsOfConnectionsAreShared(t *testing.T) {
	const takes = 10 * time.Millisecond
	var c lastCount
	began := time.Now()
	n := c.of(func() int { time.Sleep(takes); return 7 })
	if rest := c.next.Sub(began); n != 7 || rest < 20*takes {
		t.Errorf("%d, the next after %v", n, rest)
	}
	c.next = began.Add(time.Hour)
	if n = c.of(func() int { panic("counted again") }); n != 7 {
		t.Error(n)
	}
}
