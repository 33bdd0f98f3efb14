package table

import (
	"fmt"
	"maps"
	"testing"
)

// A reader that follows OnRemoval alone knows of a removal no later than the readers of
// the table.
func TestRemovalsAreToldBeforeTheyCanBeSeen(t *testing.T) {
	c := clock{now: 100}
	cfg := c.config(0)
	told := map[uint32]bool{}
	var tb *Table
	cfg.OnRemoval = func(n uint32, removed bool) {
		if _, seen := tb.EndpointRemoved(n); seen {
			t.Errorf("number %d: told that it is removed: %v, while it is seen as removed", n, removed)
		}
		if removed {
			told[n] = true
		} else {
			delete(told, n)
		}
	}
	tb = New(cfg)
	const e1, e2, f = "10.0.0.1:80", "10.0.0.2:80", "192.0.2.1:80"
	apply(t, tb, []Service{tcp("a", pool(e1, e2), f)})
	n1, n2 := number(t, tb, e1), number(t, tb, e2)
	for _, step := range []struct {
		change func()
		want   map[uint32]bool
	}{
		{func() {}, map[uint32]bool{}},
		{func() { apply(t, tb, []Service{tcp("a", pool(e2), f)}) }, map[uint32]bool{n1: true}},
		{func() { apply(t, tb, []Service{tcp("a", pool(e1), f)}) }, map[uint32]bool{n2: true}},
		{func() { apply(t, tb, nil, "a") }, map[uint32]bool{n1: true, n2: true}},
		{func() { apply(t, tb, []Service{tcp("a", pool(e1, e2), f)}) }, map[uint32]bool{}},
	} {
		if step.change(); !maps.Equal(told, step.want) {
			t.Errorf("told of %v, want %v", told, step.want)
		}
	}
}

// The number of a Service that is gone stays while connections have it: they go by its removal
// policy.
func TestANumberThatConnectionsHaveIsNotGivenAgain(t *testing.T) {
	tb := New(Config{ServiceInUse: func(n uint32) bool { return n == 1 }})
	for i := range 2 * quarantineLen {
		name := fmt.Sprint("ns/", i)
		if _, err := tb.Apply([]Service{{Name: name}}, nil); err != nil {
			t.Fatal(err)
		}
		if n, _ := tb.ServiceNumber(name); i > 0 && n == 1 {
			t.Fatalf("Service %d gets the number", i)
		}
		if _, err := tb.Apply(nil, []string{name}); err != nil {
			t.Fatal(err)
		}
	}
	if n := tb.LastServiceNumber(); n > quarantineLen+2 {
		t.Errorf("%d numbers were made", n)
	}
}
