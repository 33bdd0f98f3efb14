package ports

import (
	"errors"
	"strings"
	"testing"
	"testing/fstest"

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
		err := ps.steering.chooseHook(p)
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
	if why := ps.steering.hookReason(p); !strings.Contains(why, "neither GRO nor XDP") {
		t.Errorf("%q", why)
	}
	p.driver = "other"
	if why := ps.steering.hookReason(p); !strings.Contains(why, "the driver cannot") {
		t.Errorf("%q", why)
	}
	p.fewQueues = true
	if why := ps.steering.hookReason(p); !strings.Contains(why, "fewer queues than the node has CPUs") {
		t.Errorf("%q", why)
	}
	p.unknown = true
	if got := ps.steering.hookReason(p); !strings.HasSuffix(got, "the kernel does not say whether the driver can (Linux 6.3 says it)") {
		t.Errorf("before Linux 6.3: %q", got)
	}
	p.noTarget, p.steersOnly = false, true
	if why := ps.steering.hookReason(p); !strings.Contains(why, "zero copy") {
		t.Errorf("%q", why)
	}
	ps.SetFlowCache(errors.New("off"))
	if why := ps.steering.hookReason(p); why != "it is configured" {
		t.Errorf("%q without a flow cache", why)
	}
}

// Drivers that send redirected packets by the queue of the CPU lose them on a CPU without a queue.
func TestRedirectedPacketsNeedAQueueOfTheirCPU(t *testing.T) {
	for _, tt := range []struct {
		driver string
		queues int
		online string
		want   bool
	}{
		{"mlx5_core", 8, "0-7", true},
		{"mlx5_core", 8, "0-8", false},
		{"mlx5_core", 8, "0-3,16-19", false},
		{"i40e", 1, "0", true},
		{"i40e", 1, "0-1", false},
		{"i40e", 8, "", false}, // not known
		{"bnxt_en", 1, "0-63", true},
	} {
		sys := fstest.MapFS{"devices/system/cpu/online": {Data: []byte(tt.online + "\n")}}
		if got := hasQueuePerCPU(tt.driver, tt.queues, sys); got != tt.want {
			t.Errorf("%+v: %v", tt, got)
		}
	}
}
