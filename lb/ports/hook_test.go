package ports

import (
	"errors"
	"strings"
	"testing"

	"github.com/weirlb/weir/lb/steer"
)

// A hook that cannot be had is refused with the reason if it was asked for, and else the reason
// is kept.
func TestHookIsRefusedWithAReason(t *testing.T) {
	ps := example()
	ps.SetFlowCache(errors.New("TCX needs Linux 6.6"))
	for _, tt := range []struct {
		asked, why string
		refused    bool
	}{
		{HookTCX, "TCX needs Linux 6.6", true},
		{HookAuto, "TCX needs Linux 6.6", false},
		{HookXDP, "it is configured", false},
	} {
		p := &port{name: "eth9", driver: veth, hookAsked: tt.asked, routeIndex: 40}
		err := ps.chooseHook(eth0ID, p)
		why := p.hookWhy
		if err != nil {
			why = err.Error()
		}
		if (err != nil) != tt.refused || !strings.Contains(why, tt.why) || p.hook != steer.XDP {
			t.Errorf("%s: %v: %q, %v", tt.asked, p.hook, p.hookWhy, err)
		}
	}
}

// The status of a device to which XDP programs cannot redirect says so.
func TestHookReasonNamesADeviceThatIsNoTarget(t *testing.T) {
	ps := example()
	p := &port{driver: veth, hook: steer.XDP, hookWhy: "it is configured", noTarget: true}
	if why := ps.hookReason(p); !strings.Contains(why, "neither GRO nor XDP") {
		t.Errorf("%q", why)
	}
	p.driver = "other"
	if why := ps.hookReason(p); !strings.Contains(why, "the driver cannot") {
		t.Errorf("%q", why)
	}
	ps.SetFlowCache(errors.New("off"))
	if why := ps.hookReason(p); why != "it is configured" {
		t.Errorf("%q without a flow cache", why)
	}
}
