package ports

import (
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/weirlb/weir/lb/steer"
	"github.com/weirlb/weir/lb/warning"
)

// forgetfulDriver stops the device, and switches the carrier off and on by that, to take a
// program that it has none of.
type forgetfulDriver struct {
	carrier   uint32
	has       bool
	refuse    error
	refreshed int
	behind    func() // after a program has been taken
}

// stop is a stop and a start, such as a flap.
func (d *forgetfulDriver) stop() { d.carrier, d.has = d.carrier+2, false }

func (d *forgetfulDriver) changes(int) (uint32, error) { return d.carrier, nil }

func (d *forgetfulDriver) refresh(*steer.Attachment) error {
	if d.refuse != nil {
		return d.refuse
	}
	if !d.has {
		d.stop()
	}
	d.has = true
	d.refreshed++
	if d.behind != nil {
		d.behind()
		d.behind = nil
	}
	return nil
}

// A driver that forgets the program gets it again after the carrier has changed, until it takes
// it. Looks at a program that stays do not stop the device.
func TestForgetfulDriversGetTheProgramAgain(t *testing.T) {
	d := &forgetfulDriver{carrier: 3, has: true}
	log := slog.New(slog.DiscardHandler)
	st := &steering{log: log, warnings: warning.NewList(log)}
	p := &port{driver: "vmxnet3", hook: steer.XDP, attachment: &steer.Attachment{Mode: steer.Native}}
	look := func() { st.keepProgram(p, d.changes, d.refresh) }
	settled := func(why string) {
		t.Helper()
		for range 3 {
			look()
		}
		if !d.has {
			t.Errorf("%s: the driver has no program", why)
		}
		carrier, refreshed := d.carrier, d.refreshed
		look()
		if d.carrier != carrier || d.refreshed != refreshed {
			t.Errorf("%s: the program is given again and again", why)
		}
	}
	d.stop() // between the attachment and the first look
	settled("just attached")
	for range 3 {
		d.stop()
	}
	settled("flaps")
	d.stop()
	d.behind = d.stop // another MTU, which waited for the same lock of the kernel
	settled("a flap meanwhile")

	d.stop()
	d.refuse = errors.New("busy")
	look()
	look()
	if held := st.warnings.All(); len(held) != 1 || !strings.Contains(held[0].Text, "busy") {
		t.Errorf("warnings of a driver that refuses: %v", held)
	}
	d.refuse = nil
	settled("after a refusal")
	if held := st.warnings.All(); len(held) > 0 {
		t.Errorf("warnings after the refusal: %v", held)
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
