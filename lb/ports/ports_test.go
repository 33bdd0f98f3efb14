package ports

import (
	"errors"
	"log/slog"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weirlb/weir/lb/device"
	"github.com/weirlb/weir/lb/ports/absence"
	"github.com/weirlb/weir/lb/ports/offload"
	"github.com/weirlb/weir/lb/route"
	"github.com/weirlb/weir/lb/steer"
	"github.com/weirlb/weir/lb/warning"
	"github.com/weirlb/weir/lb/xsk"
)

// macOf is the MAC address of an example's interface.
func macOf(n byte) [6]byte { return [6]byte{2, 0, 0, 0, 0, n} }

// example has a plain interface, a bond of two members, of which the second is a backup,
// a VLAN upon the bond, a device that carries a VLAN only, and the host veth. No socket
// is open.
func example() *Ports {
	log := slog.New(slog.DiscardHandler)
	ps := newPorts(Config{
		Interfaces: []Interface{{Name: "eth0"}, {Name: "bond0"}, {Name: "bond0.7"}, {Name: "eth3.9"}},
		Log:        log, Warnings: warning.NewList(log),
	})
	device := func(p port) {
		p.vlanParent, p.queues = -1, 1
		ps.list.ports = append(ps.list.ports, &p)
	}
	device(port{name: "eth0", index: 10, parent: "eth0", routeIndex: 10, active: true, mac: macOf(10)})
	device(port{name: "eth1", index: 11, parent: "bond0", routeIndex: 20, active: true, member: true, bond: 20, mac: macOf(20)})
	device(port{name: "eth2", index: 12, parent: "bond0", routeIndex: 20, member: true, bond: 20, mac: macOf(20)})
	for _, parent := range []int{1, 2} {
		ps.list.ports = append(ps.list.ports, &port{
			name: "bond0.7", index: 21, parent: "bond0.7", routeIndex: 21, active: parent == 1, member: true,
			vlanParent: parent, tag: 0x8100_0007, mac: macOf(21),
		})
	}
	device(port{name: "eth3", index: 13, parent: "eth3.9", mac: macOf(13)})
	ps.list.ports = append(ps.list.ports, &port{
		name: "eth3.9", index: 22, parent: "eth3.9", routeIndex: 22, active: true,
		vlanParent: 5, tag: 0x8100_0009, mac: macOf(22),
	})
	ps.AddHost(Host{Name: "weir-xdp", Index: 30, MAC: macOf(30), MTU: 1500, Queues: 1})
	return ps
}

// IDs of the example's ports.
const (
	eth0ID = iota
	eth1ID
	eth2ID
	bond7on1ID
	bond7on2ID
	eth3ID
	eth3v9ID
	hostID
)

// now is the view in which nothing has changed.
func (ps *Ports) now() *view {
	v := &view{interfaces: ps.resolver.interfaces, ports: map[string][]device.Port{}, errs: map[string]error{}}
	for _, p := range ps.list.ports {
		if p.host {
			continue
		}
		v.links = append(v.links, device.Link{Index: p.index, Name: p.name, Master: p.bond, Enabled: true})
		if p.routeIndex == 0 {
			continue
		}
		v.ports[p.parent] = append(v.ports[p.parent], device.Port{
			Interface: p.routeIndex, Device: ps.list.deviceOf(p).index, Member: p.member, Active: p.active,
			VLAN: uint16(p.tag), Protocol: uint16(p.tag >> 16),
		})
	}
	return v
}

func TestLost(t *testing.T) {
	drop := func(v *view, index int) {
		v.links = slices.DeleteFunc(v.links, func(l device.Link) bool { return l.Index == index })
	}
	for _, tt := range []struct {
		name   string
		change func(v *view)
		want   map[int]string
	}{
		{"nothing", func(*view) {}, nil},
		{"a deleted device", func(v *view) { drop(v, 10) }, map[int]string{eth0ID: "interface is gone"}},
		{"a deleted VLAN", func(v *view) { drop(v, 22) }, map[int]string{eth3v9ID: "interface is gone"}},
		{"a member that left", func(v *view) { link(v.links, 12).Master = 0 }, map[int]string{eth2ID: "bond member left"}},
		{"a name that another device has", func(v *view) { v.ports["eth0"][0] = device.Port{Interface: 15, Device: 15} },
			map[int]string{eth0ID: "interface was replaced"}},
		{"a VLAN on another device", func(v *view) { v.ports["eth3.9"][0].Device = 15 },
			map[int]string{eth3v9ID: "interface was replaced", eth3ID: "interface carries no VLAN any more"}},
		{"another VLAN number", func(v *view) { v.ports["eth3.9"][0].VLAN = 8 },
			map[int]string{eth3v9ID: "interface was replaced"}},
		{"an interface that cannot be resolved", func(v *view) { v.ports["eth0"] = nil }, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ps := example()
			v := ps.now()
			tt.change(v)
			for id, p := range ps.list.ports {
				if p.host {
					continue
				}
				if got := ps.list.lost(p, v); got != tt.want[id] {
					t.Errorf("port %d (%s): %q, want %q", id, p.name, got, tt.want[id])
				}
			}
		})
	}
}

func TestNameNow(t *testing.T) {
	ps := example()
	v := ps.now()
	if got := ps.resolver.nameNow("eth0", v.links); got != "eth0" {
		t.Errorf("an interface that has its name: %s", got)
	}
	link(v.links, 10).Name = "wan"
	if got := ps.resolver.nameNow("eth0", v.links); got != "wan" {
		t.Errorf("an interface that was renamed: %s", got)
	}
	v.links = append(v.links, device.Link{Index: 15, Name: "eth0"})
	if got := ps.resolver.nameNow("eth0", v.links); got != "eth0" {
		t.Errorf("a name that another interface has taken: %s", got)
	}
	if got := ps.resolver.nameNow("eth9", v.links); got != "eth9" {
		t.Errorf("a name without an interface: %s", got)
	}
}

func TestMissing(t *testing.T) {
	ps := example()
	v := ps.now()
	for name, list := range v.ports {
		for _, r := range list {
			if index := ps.list.missing(r); index != 0 {
				t.Errorf("%s: %d is missing", name, index)
			}
		}
	}
	if index := ps.list.missing(device.Port{Interface: 15, Device: 15}); index != 15 {
		t.Errorf("a new device: %d", index)
	}
	if index := ps.list.missing(device.Port{Interface: 23, Device: 10, VLAN: 5}); index != 23 {
		t.Errorf("a new VLAN upon a device that is there: %d", index)
	}
	if index := ps.list.missing(device.Port{Interface: 23, Device: 15, VLAN: 5}); index != 15 {
		t.Errorf("a new VLAN upon a new device: %d", index)
	}
	ps.list.ports[eth0ID] = &port{state: vacant, vlanParent: -1}
	if index := ps.list.missing(v.ports["eth0"][0]); index != 10 {
		t.Errorf("a device whose port is gone: %d", index)
	}
}

// A refused device is tried again after a while, and at once when another has left room.
func TestARefusedDeviceWaits(t *testing.T) {
	ps := example()
	v := ps.now()
	r := v.ports["eth0"][0]
	if !ps.life.mayAdd(r, 10, v) {
		t.Error("it may not be added at first")
	}
	ps.life.refuse(10, "eth0", false, errors.New("no"))
	if ps.life.mayAdd(r, 10, v) {
		t.Error("tried again at once")
	}
	ps.life.refused.retry()
	if ps.life.mayAdd(r, 10, v) {
		t.Error("room does not help against every refusal")
	}
	ps.life.refuse(10, "eth0", false, errNoRoom)
	ps.life.refused.retry()
	if !ps.life.mayAdd(r, 10, v) {
		t.Error("not tried again when there is room")
	}
	link(v.links, 10).Enabled = false
	if ps.life.mayAdd(r, 10, v) {
		t.Error("a device that is down is added")
	}
}

// Only refused members of a bond are warned of here: other interfaces count as absent.
func TestRefusedMembersAreWarnings(t *testing.T) {
	ps := example()
	ps.life.refuse(10, "eth0", false, errors.New("busy"))
	ps.life.refuse(12, "eth2", true, errors.New("busy"))
	got := ps.Refused()
	if len(got) != 1 || got[0].Object != "eth2" || got[0].Kind != warning.Member || !strings.HasSuffix(got[0].Text, ": busy") {
		t.Errorf("%v", got)
	}
}

func TestRoutesLeadToActivePortsOnly(t *testing.T) {
	ps := example()
	want := []route.Interface{{Index: 10, Port: eth0ID}, {Index: 20, Port: eth1ID}, {Index: 21, Port: bond7on1ID}, {Index: 22, Port: eth3v9ID}}
	if got := ps.Routed(); !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	// The bond fails over.
	v := ps.now()
	v.ports["bond0"][0].Active, v.ports["bond0"][1].Active = false, true
	if !ps.list.followActive("bond0", v.ports["bond0"], ps.log) {
		t.Error("the change was not seen")
	}
	if ps.list.followActive("bond0", v.ports["bond0"], ps.log) {
		t.Error("the same again is a change")
	}
	ps.list.ports[eth0ID].state = leaving
	want = []route.Interface{{Index: 20, Port: eth2ID}, {Index: 21, Port: bond7on1ID}, {Index: 22, Port: eth3v9ID}}
	if got := ps.Routed(); !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// The kernel sends packets of a VLAN by the device, with the tag: by a member of a bond only
// while packets may be sent by that.
func TestForwardingByVLANs(t *testing.T) {
	ps := example()
	for _, id := range []int{eth0ID, eth1ID, eth2ID} {
		ps.list.ports[id].attachment = &steer.Attachment{}
	}
	want := map[int]Device{
		eth0ID: {IfIndex: 10}, eth1ID: {IfIndex: 11}, eth2ID: {},
		bond7on1ID: {IfIndex: 11, Tag: 0x8100_0007}, bond7on2ID: {Tag: 0x8100_0007},
		eth3ID: {}, eth3v9ID: {Tag: 0x8100_0009}, // eth3 is not attached
		hostID: {},
	}
	for _, d := range ps.Forwarding() {
		if w := want[d.ID]; d.IfIndex != w.IfIndex || d.Tag != w.Tag {
			t.Errorf("port %d: %+v, want %+v", d.ID, d, w)
		}
		delete(want, d.ID)
	}
	if len(want) > 0 {
		t.Errorf("missing: %v", want)
	}
}

func TestVLANsOfADevice(t *testing.T) {
	ps := example()
	for _, tt := range []struct {
		id   int
		want map[steer.VLAN]byte
	}{
		{eth0ID, nil},
		{eth1ID, map[steer.VLAN]byte{0: 20, 0x8100_0007: 21}},
		{eth3ID, map[steer.VLAN]byte{0x8100_0009: 22}},
		{hostID, nil},
	} {
		got := ps.list.vlans(tt.id)
		if len(got) != len(tt.want) || (got == nil) != (tt.want == nil) {
			t.Errorf("port %d: %v, want %v", tt.id, got, tt.want)
		}
		for vlan, n := range tt.want {
			if mac := macOf(n); !slices.Equal(got[vlan], net.HardwareAddr(mac[:])) {
				t.Errorf("port %d: %v, want %v", tt.id, got, tt.want)
			}
		}
	}
	ps.list.ports[eth3v9ID].state = leaving
	if got := ps.list.vlans(eth3ID); got == nil || len(got) != 0 {
		t.Errorf("a device without the VLAN that it carries: %v, want none, and not the device itself", got)
	}
}

// A port advances by one state per Follow; its ID is free at the end.
func TestAPortLeavesByStates(t *testing.T) {
	ps := example()
	p := ps.list.ports[eth0ID]
	p.state = leaving
	v := &view{}
	var states []state
	for range 3 {
		u := Update{}
		ps.life.advance(v, &u)
		states = append(states, ps.list.ports[eth0ID].state)
		told := slices.Contains(u.Ports, eth0ID)
		if want := ps.list.ports[eth0ID].state != closed; told != want {
			t.Errorf("state %d: workers told: %v", ps.list.ports[eth0ID].state, told)
		}
	}
	if want := []state{closing, closed, vacant}; !slices.Equal(states, want) {
		t.Errorf("states %v, want %v", states, want)
	}
	if ps.Moving() {
		t.Error("it still moves")
	}
}

// While the device still exists the kernel may use the frames for a second more.
func TestFramesOfAClosedSocketWait(t *testing.T) {
	ps := example()
	v := ps.now()
	p := ps.list.ports[eth0ID]
	p.state, p.closed = closed, time.Now()
	ps.life.advance(v, &Update{})
	if p := ps.list.ports[eth0ID]; p.state != closed {
		t.Fatalf("state %d at once", p.state)
	}
	p.closed = p.closed.Add(-releaseTime)
	ps.life.advance(v, &Update{})
	if p := ps.list.ports[eth0ID]; p.state != vacant {
		t.Errorf("state %d after a second", p.state)
	}
}

// A VLAN's port goes with its device.
func TestRemoveTakesTheVLANsAlong(t *testing.T) {
	ps := example()
	ps.steering.offloads = &offload.Record{}
	ps.life.remove(eth1ID, true)
	for id, want := range map[int]state{eth1ID: leaving, bond7on1ID: leaving, eth2ID: open, bond7on2ID: open} {
		if got := ps.list.ports[id].state; got != want {
			t.Errorf("port %d: state %d, want %d", id, got, want)
		}
	}
	if !ps.Moving() {
		t.Error("nothing moves")
	}
}

func TestWhyAnInterfaceIsAbsent(t *testing.T) {
	ps := example()
	v := ps.now()
	v.links = slices.DeleteFunc(v.links, func(l device.Link) bool { return l.Index == 10 })
	v.ports["eth0"] = nil
	for name, want := range map[string]string{
		"eth0":  "is gone: it is attached again when it is back",
		"bond0": absence.Attaching,
	} {
		v.links = append(v.links, device.Link{Index: 20, Name: "bond0"})
		if got := ps.whyAbsent(name, v); got != want {
			t.Errorf("%s %q, want %q", name, got, want)
		}
	}
	link(v.links, 11).Enabled = false
	if got := ps.whyAbsent("bond0", v); !strings.Contains(got, "eth1 is down") {
		t.Errorf("a member that is down: %q", got)
	}
	ps.life.refuse(11, "eth1", true, errors.New("busy"))
	if got := ps.whyAbsent("bond0", v); !strings.HasSuffix(got, "cannot be attached: busy") {
		t.Errorf("a member that was refused: %q", got)
	}

}

// Workers without a queue of their own at a port send by the owners in turn. A worker
// drops packets for a port that is closing.
func TestView(t *testing.T) {
	ps := example()
	ps.list.ports[eth0ID].sockets = []*xsk.Socket{{}, {}}
	for worker := 2; worker < 6; worker++ {
		v := ps.View(eth0ID, worker)
		if v.Owner != worker%2 || v.Queue != nil || v.RouteIndex != 10 {
			t.Errorf("worker %d: %+v", worker, v)
		}
	}
	if own, other := len(ps.Sockets(1)), len(ps.Sockets(2)); own != 1 || other != 0 {
		t.Errorf("worker 1 waits for %d sockets, worker 2 for %d", own, other)
	}
	ps.list.ports[eth0ID].state = closing
	if v := ps.View(eth0ID, 3); v.Owner != 3 || v.Queue != nil {
		t.Errorf("a port that is closing: %+v", v)
	}
	if n := len(ps.Sockets(1)); n != 0 {
		t.Errorf("worker 1 waits for %d sockets of a port that is closing", n)
	}
}
