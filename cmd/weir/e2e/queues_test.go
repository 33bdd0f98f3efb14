package e2e

import (
	"context"
	"fmt"
	"testing"

	"github.com/weirlb/weir/lb/counter"
	"github.com/weirlb/weir/perf/netlab"
)

// An interface gets more receive queues, and fewer again, while Weir is attached. Packets of
// connections arrive by the new queue too, which gets the program and a socket.
func TestWireQueueCountChangesInPlace(t *testing.T) {
	o := options{
		edge: netlab.EdgeConfig{Queues: 3}, services: kinds, stopped: true,
		extra: "death: {holdSeconds: 600}\nworkers: {count: 2}\n",
	}
	for _, hook := range append([]string{"no cache"}, hooks...) {
		t.Run(hook, func(t *testing.T) {
			o := o
			if hook == "no cache" {
				o.interfaces = "[{name: eth0, hook: xdp}, {name: eth1, hook: xdp}]"
				o.extra += "flowCache: {mode: \"off\"}\n"
			} else {
				o.interfaces = fmt.Sprintf("[{name: eth0, hook: %s}, {name: eth1, hook: %s}]", hook, hook)
				o.extra += "flowCache: {mode: auto}\n"
			}
			f := ownFixture(t, o)
			f.fromWire(t, hook)
			f.channels(t, 1)
			must(t, f.start())
			s, err := f.admin.Status(inTime(t, within))
			must(t, err)
			if mode := interfaceOf(s, "eth1").Mode; hook != "tcx" && mode != "native" {
				t.Fatalf("mode %s: its program is not with the queues", mode)
			}
			f.queuesChange(t, hook)
		})
	}
}

func (f *fixture) queuesChange(t *testing.T, hook string) {
	t.Helper()
	f.goingOn(t, f.fromClient, func() {
		f.channels(t, 2)
		f.begins(t, "with 2 queues")
		// Whatever the queue: every connection has to go on by both.
		f.checkLoad(t, f.Client, toPod.at(httpPort, false), 50)
		f.checkLoad(t, f.Client, toAttached.at(httpPort, true), 50)
		must(t, f.Edge.Edge.SetChannels("eth0", 3, 3)) // no client sends by the third
		if hook != "tcx" {
			f.awaits(t, "1 of its 3 receive queues have no worker", true)
		}
		f.begins(t, "with 3 queues")
		must(t, f.Edge.Edge.SetChannels("eth0", 2, 3))
		f.awaits(t, "have no worker", false)
		f.begins(t, "with 2 queues again")
	})
	if hook == "no cache" && f.receivedBySecond(t) == 0 {
		t.Error("the second worker has received nothing: the test shows nothing")
	}
}

// channels sets the receive queues of the attached interfaces, and the transmit queues of
// their peers when Weir knows: a veth puts a packet on the queue that it was sent by, and takes
// a program only if its peer has no more queues to send by than it has to receive from.
func (f *fixture) channels(t *testing.T, n int) {
	t.Helper()
	type peer struct {
		*netlab.Namespace
		name string
	}
	peers := map[string]peer{"eth0": {f.Client, "eth0"}, "eth1": {f.Fabric, "edge"}}
	for name, p := range peers {
		if f.weir == nil { // the peer may not have more
			must(t, p.SetChannels(p.name, 3, n))
		}
		must(t, f.Edge.Edge.SetChannels(name, n, 3))
		if f.weir == nil {
			continue
		}
		must(t, f.poll(func(ctx context.Context) error {
			s, err := f.admin.Status(ctx)
			if err == nil && interfaceOf(s, name).Queues != n {
				err = fmt.Errorf("%s has %d queues, want %d", name, interfaceOf(s, name).Queues, n)
			}
			return err
		}))
		must(t, p.SetChannels(p.name, 3, n))
	}
}

// receivedBySecond is the number of packets that the second worker has received.
func (f *fixture) receivedBySecond(t *testing.T) uint64 {
	t.Helper()
	s, err := f.admin.Status(inTime(t, within))
	must(t, err)
	return s.Workers[1].Counters[counter.RxPackets]
}
