package ports

import "testing"

// An uplink of several without a carrier must not take the node out of service: a switch that
// restarts would take all nodes out at once. Without any, the node is of no use.
func TestAnUplinkOfSeveralMayLoseItsCarrier(t *testing.T) {
	ps := example()
	ps.cfg.Interfaces = []Interface{{Name: "eth0"}, {Name: "bond0"}}
	ps.setAbsent("eth0", noCarrier, false)
	if a := ps.Absent(); a != nil {
		t.Errorf("bond0 works: %+v", a)
	}
	if got := ps.Absences(); got["eth0"] != noCarrier || len(ps.warnings.All()) != 1 {
		t.Errorf("%v, warnings %v", got, ps.warnings.All())
	}
	ps.setAbsent("bond0", "is gone", false)
	if a := ps.Absent(); a == nil || a.Final || a.Reason != "interface bond0 is gone; interface eth0 "+noCarrier {
		t.Errorf("none works: %+v", a)
	}
	ps.setAbsent("bond0", noCarrier, false)
	if a := ps.Absent(); a == nil {
		t.Error("none has a carrier")
	}
	delete(ps.absent, "eth0")
	ps.publishAbsent()
	if a := ps.Absent(); a != nil {
		t.Errorf("eth0 is back: %+v", a)
	}
}
