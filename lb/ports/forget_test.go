package ports

import (
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/weirlb/weir/lb/steer"
	"github.com/weirlb/weir/lb/warning"
)

// A driver that forgets the program gets it again after the carrier has changed, once for each
// change, and until it takes it.
func TestForgetfulDriversGetTheProgramAgain(t *testing.T) {
	const index = 7
	carrier, refreshed, refuse := uint32(3), 0, error(nil)
	changes := func(i int) (uint32, error) {
		if i != index {
			t.Errorf("asked for interface %d", i)
		}
		return carrier, nil
	}
	refresh := func(*steer.Attachment) error {
		if refuse != nil {
			return refuse
		}
		carrier, refreshed = carrier+2, refreshed+1 // the driver stops the device
		return nil
	}
	p := &port{index: index, driver: "vmxnet3", hook: steer.XDP, attachment: &steer.Attachment{Mode: steer.Native}}
	p.noteCarrier(changes)
	log := slog.New(slog.DiscardHandler)
	ps := &Ports{log: log, warnings: warning.NewList(log)}
	look := func(why string, want int) {
		t.Helper()
		refreshed = 0
		ps.keepProgram(p, changes, refresh)
		if refreshed != want {
			t.Errorf("%s: given %d times, want %d", why, refreshed, want)
		}
	}
	look("just attached", 0)
	carrier += 2
	look("a flap", 1)
	look("no further flap", 0)
	carrier++
	refuse = errors.New("busy")
	look("refused", 0)
	look("refused again", 0)
	if held := ps.warnings.All(); len(held) != 1 || !strings.Contains(held[0].Text, "busy") {
		t.Errorf("warnings of a driver that refuses: %v", held)
	}
	refuse = nil
	look("after a refusal", 1)
	if held := ps.warnings.All(); len(held) > 0 {
		t.Errorf("warnings after the refusal: %v", held)
	}
}

// The program that an earlier process left may be forgotten already.
func TestAnAdoptedProgramIsGivenAgain(t *testing.T) {
	changes := func(int) (uint32, error) { return 2, nil }
	p := &port{driver: "vmxnet3", hook: steer.XDP, attachment: &steer.Attachment{Mode: steer.Native, Adopted: true}}
	p.noteCarrier(changes)
	given := 0
	log := slog.New(slog.DiscardHandler)
	ps := &Ports{log: log, warnings: warning.NewList(log)}
	ps.keepProgram(p, changes, func(*steer.Attachment) error { given++; return nil })
	if given != 1 {
		t.Errorf("given %d times", given)
	}
}

func TestOnlyNativeProgramsOfSomeDriversAreForgotten(t *testing.T) {
	native, generic := &steer.Attachment{Mode: steer.Native}, &steer.Attachment{Mode: steer.Generic}
	for name, c := range map[string]struct {
		p    port
		want bool
	}{
		"native":       {port{driver: "vmxnet3", hook: steer.XDP, attachment: native}, true},
		"generic":      {port{driver: "vmxnet3", hook: steer.XDP, attachment: generic}, false},
		"hook tcx":     {port{driver: "vmxnet3", hook: steer.TCX, attachment: native}, false},
		"not attached": {port{driver: "vmxnet3", hook: steer.XDP}, false},
		"igb":          {port{driver: "igb", hook: steer.XDP, attachment: native}, false},
	} {
		if got := c.p.mayForget(); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
