package lb

import (
	"fmt"
	"strings"
	"testing"

	"github.com/weirlb/weir/lb/hostveth"
	"github.com/weirlb/weir/lb/steer"
)

// Before there is a host veth a number is kept for it; a member that has left
// leaves its own.
func TestPortsAreNumbered(t *testing.T) {
	l := &LB{}
	for n := range steer.MaxSlots - 1 {
		if slot, err := l.number(&iface{name: fmt.Sprintf("eth0.%d", n), under: -1}); err != nil || slot != n {
			t.Fatalf("port %d: %d, %v", n, slot, err)
		}
	}
	_, err := l.number(&iface{name: "eth0.100"})
	if err == nil {
		t.Fatal("there is always room")
	}
	for _, s := range []string{"eth0.100", "63 devices and VLANs", "leave out VLAN interfaces"} {
		if !strings.Contains(err.Error(), s) {
			t.Errorf("%q does not say %q", err, s)
		}
	}
	l.host = &hostveth.Veth{}
	if slot, err := l.number(&iface{name: "weir-xdp", host: true, under: -1}); err != nil || slot != steer.MaxSlots-1 {
		t.Errorf("the host veth: %d, %v", slot, err)
	}
	if _, err := l.number(&iface{name: "eth1"}); err == nil {
		t.Error("there is always room")
	}
	l.ifaces[5] = &iface{stage: vacant, under: -1}
	if slot, err := l.number(&iface{name: "eth1"}); err != nil || slot != 5 {
		t.Errorf("in the place of one that left: %d, %v", slot, err)
	}
}
