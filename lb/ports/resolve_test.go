package ports

import (
	"fmt"
	"strings"
	"testing"

	"github.com/weirlb/weir/lb/steer"
)

// Before there is a host veth an ID is kept for it; a member that has left leaves its
// own.
func TestPortsGetIDs(t *testing.T) {
	ps := newPorts(Config{})
	for n := range steer.MaxSlots - 1 {
		if id, err := ps.list.assign(&port{name: fmt.Sprintf("eth0.%d", n), vlanParent: -1}); err != nil || id != n {
			t.Fatalf("port %d: %d, %v", n, id, err)
		}
	}
	_, err := ps.list.assign(&port{name: "eth0.100"})
	if err == nil {
		t.Fatal("there is always room")
	}
	for _, s := range []string{"eth0.100", "63 devices and VLANs", "leave out VLAN interfaces"} {
		if !strings.Contains(err.Error(), s) {
			t.Errorf("%q does not say %q", err, s)
		}
	}
	ps.AddHost(Host{Name: "weir-xdp"})
	if id := ps.HostID(); id != steer.MaxSlots-1 {
		t.Errorf("the host veth: %d", id)
	}
	if _, err := ps.list.assign(&port{name: "eth1"}); err == nil {
		t.Error("there is always room")
	}
	ps.list.ports[5] = &port{state: vacant, vlanParent: -1}
	if id, err := ps.list.assign(&port{name: "eth1"}); err != nil || id != 5 {
		t.Errorf("in the place of one that left: %d, %v", id, err)
	}
}
