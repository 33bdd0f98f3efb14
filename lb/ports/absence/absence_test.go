package absence

import (
	"log/slog"
	"testing"

	"github.com/weirlb/weir/lb/warning"
)

func record(interfaces ...string) *Record {
	return New(interfaces, warning.NewList(slog.New(slog.DiscardHandler)))
}

func TestAReasonIsFinalIfAnyIs(t *testing.T) {
	r := record("eth0")
	if r.Load() != nil {
		t.Error("absent at the start")
	}
	r.Set("eth0", "is gone", false)
	if a := r.Load(); a == nil || a.Final || a.Reason != "interface eth0 is gone" {
		t.Errorf("%+v", a)
	}
	r.Set("weir-xdp", "is gone", true)
	if a := r.Load(); !a.Final || a.Reason != "interface eth0 is gone; interface weir-xdp is gone" {
		t.Errorf("%+v", a)
	}
	if got := r.Reasons(); len(got) != 2 || len(r.warnings.All()) != 2 {
		t.Errorf("%v, warnings %v", got, r.warnings.All())
	}
	if _, was := r.Clear("weir-xdp"); was || !r.Load().Final {
		t.Error("a final reason was cleared")
	}
}

// An uplink of several without a carrier must not take the node out of service: a switch that
// restarts would take all nodes out at once. Without any, the node is of no use.
func TestAnUplinkOfSeveralMayLoseItsCarrier(t *testing.T) {
	r := record("eth0", "bond0")
	r.Set("eth0", NoCarrier, false)
	if a := r.Load(); a != nil {
		t.Errorf("bond0 works: %+v", a)
	}
	if got := r.Reasons(); got["eth0"] != NoCarrier || len(r.warnings.All()) != 1 {
		t.Errorf("%v, warnings %v", got, r.warnings.All())
	}
	r.Set("bond0", "is gone", false)
	if a := r.Load(); a == nil || a.Final || a.Reason != "interface bond0 is gone; interface eth0 "+NoCarrier {
		t.Errorf("none works: %+v", a)
	}
	r.Set("bond0", NoCarrier, false)
	if a := r.Load(); a == nil {
		t.Error("none has a carrier")
	}
	if _, was := r.Clear("eth0"); !was || r.Load() != nil {
		t.Errorf("eth0 is back: %+v", r.Load())
	}
}
