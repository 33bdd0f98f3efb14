//go:build !race

// The race detector does not survive the faults.

package conntrack

import (
	"bytes"
	"runtime/debug"
	"testing"
)

// A worker of a process that has left faults where it would change the file.
func TestAWorkerOfAProcessThatHasLeftFaults(t *testing.T) {
	cfg := fileConfig(t)
	want := fillAndClose(t, cfg, 20)
	last, next, refs, before := succeeded(t, cfg)
	defer next.Close()
	w := last.Worker(0)
	w.Online()
	for name, write := range map[string]func(){
		"end":      func() { w.Delete(refs[1]) },
		"packet":   func() { last.TrackTCP(refs[2], &Segment{Flags: flagRST, Seq: 1}, last.Tick()) },
		"next hop": func() { last.Unsettle(refs[3]) },
		"numbers":  func() { last.SetIDs(refs[4], 1, 1) },
		"new":      func() { w.Create(natFlow(30)) },
	} {
		if !faults(write) {
			t.Errorf("%s: no fault", name)
		}
	}
	if !bytes.Equal(before, leftBy(t, cfg)) {
		t.Error("the table was changed")
	}
	checkSurvived(t, next, want)
}

// faults reports whether f accesses memory that it may not.
func faults(f func()) (yes bool) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() { yes = recover() != nil }()
	f()
	return false
}
