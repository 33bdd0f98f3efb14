package main

import (
	"errors"
	"strings"
	"testing"

	"github.com/weirlb/weir/deploy/appliance/slot"
)

// /readyz is asked where Weir's configuration has it.
func TestReadinessIsAskedAtHealthzBindAddress(t *testing.T) {
	for _, test := range []struct{ config, want string }{
		{"nodeName: edge-1\n", "127.0.0.1:9465"},
		{"healthzBindAddress: 0.0.0.0:8080\n", "127.0.0.1:8080"},
		{"healthzBindAddress: ':8080'\n", "localhost:8080"},
		{"healthzBindAddress: '[::]:8080'\n", "localhost:8080"},
		{"healthzBindAddress: 10.77.0.1:9465\n", "10.77.0.1:9465"},
		{"healthzBindAddress: ''\n", ""},
		{"interfaces: [\n", ""},
	} {
		got, err := addressOf([]byte(test.config))
		if got != test.want || (err == nil) != (test.want != "") {
			t.Errorf("%q: %q, %v, want %q", test.config, got, err, test.want)
		}
	}
}

// A trial may fail because of the drive: the configuration is left before the release is, and
// the last boot of the trial leaves neither to the other slot.
func TestTheCauseOfAFailureIsLeft(t *testing.T) {
	const configuration, release = "configuration", "release 2.0.0"
	trial := func(left int) *slot.Entry { return &slot.Entry{Version: "2.0.0", Trial: true, Left: left} }
	for name, test := range map[string]struct {
		e             *slot.Entry
		other, served bool // there is another slot; an earlier configuration has served
		want, used    string
	}{
		"a trial with another drive":             {trial(2), true, true, configuration, "old"},
		"the last of such a trial":               {trial(0), true, true, release, "new"},
		"a trial of a machine that never served": {trial(2), true, false, release, "new"},
		"a trial without another slot":           {trial(0), false, true, configuration, "old"},
		"a confirmed slot with another drive":    {&slot.Entry{Version: "1.0.0"}, true, true, configuration, "old"},
		"a confirmed slot that never served":     {&slot.Entry{Version: "1.0.0"}, true, false, "", "new"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStore(t)
			if test.served {
				must(t, s.keep(newDrive(t, "old")))
				must(t, s.served())
			}
			must(t, s.keep(newDrive(t, "new")))
			gone, err := leave(s, test.e, test.other, errors.New("no carrier"))
			if err != nil || !strings.Contains(gone, test.want) || (gone == "") != (test.want == "") {
				t.Errorf("%q is left, %v, want %q", gone, err, test.want)
			}
			if got := used(t, s); got != test.used {
				t.Errorf("weir.yaml is %q, want %q", got, test.used)
			}
		})
	}
}

// What is given up in memory is forgotten by the next boot, which would take the drive again, and
// so on.
func TestAStateInMemoryGivesNothingUp(t *testing.T) {
	s := newStore(t)
	must(t, s.keep(newDrive(t, "old")))
	must(t, s.served())
	must(t, s.keep(newDrive(t, "new")))
	s.gone = true
	gone, err := leave(s, &slot.Entry{Version: "1.0.0"}, true, errors.New("no carrier"))
	if gone != "" || err != nil || used(t, s) != "new" {
		t.Errorf("%q is left, %v", gone, err)
	}
}

// A release that does not serve is left as soon as there is no configuration to leave.
func TestATrialLeavesTheReleaseWithTheConfigurationThatServed(t *testing.T) {
	s := newStore(t)
	must(t, s.keep(newDrive(t, "good")))
	must(t, s.served())
	for left := slot.Tries - 1; left >= 0; left-- {
		gone, err := leave(s, &slot.Entry{Version: "2.0.0", Trial: true, Left: left}, true, errors.New("no carrier"))
		if err != nil || !strings.Contains(gone, "release 2.0.0") || used(t, s) != "good" {
			t.Errorf("with %d boots left %q is left, %v", left, gone, err)
		}
	}
}
