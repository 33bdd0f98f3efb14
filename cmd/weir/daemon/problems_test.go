package daemon

import (
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/weirlb/weir/cmd/weir/config"
	"github.com/weirlb/weir/cmd/weir/problem"
	"github.com/weirlb/weir/cmd/weir/translate"
	"github.com/weirlb/weir/lb/table"
)

// What could not be published of a Service is no problem any more when the Service is
// left to the kernel.
func TestPublicationProblemsEndWithTheService(t *testing.T) {
	d := &Daemon{problems: problem.NewRegistry(slog.New(slog.DiscardHandler))}
	put := translate.Batch{Put: []table.Service{{Name: "default/web"}}}
	d.publicationProblems(&put, errors.Join(&table.ServiceError{Service: "default/web", Err: errors.New("no number is free")}))
	if list, _ := d.problems.List(10); len(list) != 1 || list[0].Object != "Service default/web" {
		t.Fatalf("got %v", list)
	}
	d.publicationProblems(&translate.Batch{Delete: []string{"default/web"}}, nil)
	if list, _ := d.problems.List(10); len(list) != 0 {
		t.Errorf("still there: %v", list)
	}
}

// A drain that nobody ends is a problem, so that it is not forgotten.
func TestDrainsOfTheOperatorAreProblems(t *testing.T) {
	d := &Daemon{cfg: &config.Configuration{NodeName: "edge-1"}}
	if list := d.drainProblems(); len(list) != 0 {
		t.Errorf("without a drain: %v", list)
	}
	now := time.Now()
	d.selfDrained.Store(&now)
	for _, name := range []string{"10.1.1.1:80", "10.1.1.2", "10.1.1.3", "10.1.1.4"} {
		e, _ := translate.ParseDrained(name)
		d.drained = append(d.drained, drainedEndpoint{e, now})
	}
	list := d.drainProblems()
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

// The Event of a Service has all its problems, under the reason of the worst,
// and nothing that is passed over on purpose.
func TestEventOfProblems(t *testing.T) {
	reason, text := eventOf([]problem.Problem{
		problem.New(problem.FrontendConflict, "", "TCP 192.0.2.1:80 is held by Service a/b"),
		problem.New(problem.ForwardingMode, "spec.x", "nat is used"),
		problem.New(problem.OtherClass, "spec.loadBalancerClass", "another"),
	})
	if reason != "FrontendConflict" || text != "TCP 192.0.2.1:80 is held by Service a/b; spec.x: nat is used" {
		t.Errorf("%s %q", reason, text)
	}
	if reason, text = eventOf(nil); reason != "" || text != "" {
		t.Errorf("%s %q", reason, text)
	}
}
