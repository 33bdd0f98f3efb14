package e2e

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/lb/counter"
	"github.com/weirlb/weir/perf/netlab"
	"github.com/weirlb/weir/perf/netlab/workload"
)

// bondOf declares a bond with these members, of which the last one is used.
func bondOf(bond string, members ...string) string {
	links := []string{fmt.Sprintf(`{"Name": %q, "Kind": "bond", "Bond": "active-backup"}`, bond)}
	for i, m := range members {
		links = append(links, fmt.Sprintf(`{"Name": %q, "Kind": "veth", "Master": %q, "Active": %t}`, m, bond, i == len(members)-1))
	}
	return "[" + strings.Join(links, ",") + "]"
}

// addMember makes a link between the edge and the client: m1 with a queue for
// each worker, others with one, so that the other worker hands its packets over.
func (s *stacked) addMember(t *testing.T, name string) {
	t.Helper()
	queues := 1
	if name == "m1" {
		queues = 2
	}
	must(t, netlab.Connect(netlab.End{Namespace: s.Edge.Edge, Name: name, MAC: stackedMAC},
		netlab.End{Namespace: s.Client, Name: name}, netlab.LinkConfig{Queues: queues}))
}

// removeMember deletes a link with both its ends.
func (s *stacked) removeMember(t *testing.T, name string) {
	t.Helper()
	if tap := s.taps[name]; tap != nil {
		tap.Close()
		delete(s.taps, name)
	}
	must(t, s.Edge.Edge.Delete(name))
}

// until waits until the status is as it should be.
func (s *stacked) until(t *testing.T, wanted func(*api.Status) error) {
	t.Helper()
	must(t, s.poll(func(ctx context.Context) error {
		status, err := s.admin.Status(ctx)
		if err == nil {
			err = wanted(status)
		}
		return err
	}))
}

// index is the kernel's number of an interface of the edge.
func (s *stacked) index(t *testing.T, name string) int {
	t.Helper()
	link, err := s.Edge.Edge.Interface(name)
	must(t, err)
	return link.Attrs().Index
}

// joined waits until an interface is there and packets may leave by it.
func (s *stacked) joined(t *testing.T, name string, index int) {
	t.Helper()
	s.until(t, func(status *api.Status) error {
		if i := interfaceOf(status, name); i == nil || i.IfIndex != index || i.Mode != "native" || i.Inactive {
			return fmt.Errorf("%s: %+v", name, i)
		}
		return nil
	})
}

// left waits until an interface is gone from Weir, and every worker has as many
// frames again as it had: a fill ring is topped up by half a batch at least.
func (s *stacked) left(t *testing.T, name string, free []uint64) {
	t.Helper()
	s.until(t, func(status *api.Status) error {
		if i := interfaceOf(status, name); i != nil {
			return fmt.Errorf("%s: %+v", name, i)
		}
		now := freeFrames(status)
		for n, had := range free {
			if now[n]+uint64(32*len(status.Interfaces)) < had {
				return fmt.Errorf("worker %d has %d free frames, and had %d", n, now[n], had)
			}
		}
		return nil
	})
}

func freeFrames(status *api.Status) (free []uint64) {
	for _, w := range status.Workers {
		free = append(free, w.Counters[counter.FreeFrames])
	}
	return free
}

// undisturbed has traffic by another interface until the returned function is
// called: not one packet of it may be lost.
func (s *stacked) undisturbed(t *testing.T) (stop func()) {
	var wait sync.WaitGroup
	done := make(chan struct{})
	for _, svc := range []service{toAttached, toPod} {
		c := s.dialUDP(t, svc.at(echoPort, false))
		wait.Go(func() { s.echoes(t, c, done) })
	}
	return func() {
		close(done)
		wait.Wait()
	}
}

func (s *stacked) echoes(t *testing.T, c net.Conn, done chan struct{}) {
	for {
		r, err := workload.CheckEcho(c, 1, 100, within)
		if err == nil && r.Lost+r.Corrupt > 0 {
			err = errors.New("packets are missing")
		}
		if err != nil {
			t.Errorf("by another interface: %+v, %v", r, err)
			return
		}
		select {
		case <-done:
			return
		default:
		}
	}
}

// Members join a bond, leave it, come back, are deleted and made anew: each
// carries packets while it is one, the kernel has its packets when it is not,
// other traffic goes on, and no frame is lost.
func TestWireBondMembersJoinAndLeave(t *testing.T) {
	s := newStacked(t, "bond0", "[{name: eth0}, {name: bond0}, {name: eth1}]", bondOf("bond0", "m0"), func(s *stacked) {
		s.addMember(t, "m0")
	})
	s.answered(t, toAttached, "m0", "m0", 5000, 0)
	stop := s.undisturbed(t)
	defer stop()
	status, err := s.admin.Status(inTime(t, within))
	must(t, err)
	free := freeFrames(status)

	s.addMember(t, "m1")
	s.declare(t, bondOf("bond0", "m0", "m1"))
	s.joined(t, "m1", s.index(t, "m1"))
	s.answered(t, toAttached, "m0", "m1", 5000, 0) // the flow that there was
	s.answered(t, toAttached, "m1", "m1", 5001, 0)
	s.answered(t, toPod, "m1", "m1", 5002, 0)

	s.declare(t, bondOf("bond0", "m0"))
	s.left(t, "m1", free)
	s.answered(t, toAttached, "m0", "m0", 5001, 0)
	link, err := s.Edge.Edge.Interface("m1")
	must(t, err)
	if x := link.Attrs().Xdp; x != nil && x.Attached {
		t.Error("the steering program is still on a device that has left the bond")
	}

	s.declare(t, bondOf("bond0", "m0", "m1"))
	s.joined(t, "m1", s.index(t, "m1"))
	s.answered(t, toPod, "m1", "m1", 5002, 0)

	s.removeMember(t, "m1")
	s.addMember(t, "m1") // under another number
	s.joined(t, "m1", s.index(t, "m1"))
	s.answered(t, toAttached, "m1", "m1", 5001, 0)

	s.declare(t, bondOf("bond0", "m1"))
	s.left(t, "m0", nil)
	s.answered(t, toPod, "m1", "m1", 5003, 0)

	s.declare(t, bondOf("bond0", "m0"))
	s.left(t, "m1", nil)
	s.joined(t, "m0", s.index(t, "m0"))
	s.left(t, "m1", free)
	s.answered(t, toPod, "m0", "m0", 5003, 0)
}

// More members than there is packet memory for are named, and carry nothing
// until there is room.
func TestWireBondHasRoomForTwoMoreMembers(t *testing.T) {
	s := newStacked(t, "bond0", "[{name: eth0}, {name: bond0}, {name: eth1}]", bondOf("bond0", "m0"), func(s *stacked) {
		for _, m := range []string{"m0", "m1", "m2", "m3"} {
			s.addMember(t, m)
		}
	})
	s.declare(t, bondOf("bond0", "m3", "m0", "m1", "m2"))
	s.joined(t, "m2", s.index(t, "m2"))
	s.until(t, func(status *api.Status) error {
		for _, w := range status.Warnings {
			if strings.Contains(w, "bond member m3") && strings.Contains(w, "restart Weir") {
				return nil
			}
		}
		return fmt.Errorf("m3 is not named: %q", status.Warnings)
	})
	s.declare(t, bondOf("bond0", "m0", "m2", "m3"))
	s.joined(t, "m3", s.index(t, "m3"))
	s.answered(t, toAttached, "m2", "m3", 5000, 0)
}

// A VLAN upon a bond is carried by the members that join.
func TestWireVLANUponABondFollowsItsMembers(t *testing.T) {
	const vlan = `,{"Name": "bond0.7", "Kind": "vlan", "Parent": "bond0", "VLAN": 7}]`
	with := func(members ...string) string { return strings.TrimSuffix(bondOf("bond0", members...), "]") + vlan }
	s := newStacked(t, "bond0.7", "[{name: eth0}, {name: bond0.7}, {name: eth1}]", with("m0"), func(s *stacked) {
		must(t, netlab.Connect(netlab.End{Namespace: s.Edge.Edge, Name: "bond0", MAC: stackedMAC},
			netlab.End{Namespace: s.Edge.Edge, Name: "standin0"}, netlab.LinkConfig{}))
		s.addMember(t, "m0")
		s.addMember(t, "m1")
	})
	s.answered(t, toPod, "m0", "m0", 5000, 7)
	s.declare(t, with("m0", "m1"))
	s.answered(t, toPod, "m0", "m1", 5000, 7)
	s.answered(t, toAttached, "m1", "m1", 5001, 7)
	s.declare(t, with("m0"))
	s.answered(t, toAttached, "m0", "m0", 5001, 7)
	s.declare(t, with("m0", "m1"))
	s.answered(t, toAttached, "m1", "m1", 5001, 7)
}

// A member that Weir cannot send by is named, and the others go on.
func TestWireABondGoesOnBesideAMemberThatCannotBeAttached(t *testing.T) {
	s := newStacked(t, "bond0", "[{name: eth0}, {name: bond0}, {name: eth1}]", bondOf("bond0", "m0"), func(s *stacked) {
		s.addMember(t, "m0")
		s.addMember(t, "m1")
	})
	s.declare(t, strings.Replace(bondOf("bond0", "m1", "m0"), `"m1", "Kind": "veth"`, `"m1", "Kind": "tuntap"`, 1))
	s.until(t, func(status *api.Status) error {
		for _, w := range status.Warnings {
			if strings.Contains(w, "its member m1 is a tuntap") {
				return nil
			}
		}
		return fmt.Errorf("m1 is not named: %q", status.Warnings)
	})
	s.joined(t, "m0", s.index(t, "m0"))
	s.answered(t, toAttached, "m0", "m0", 5000, 0)
}
