package e2e

import (
	"context"
	"errors"
	"fmt"
	"net"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/weirlb/weir/perf/netlab"
	"github.com/weirlb/weir/perf/netlab/workload"
)

// An interface is guarded from the moment at which it is there again: the kernel resets no
// connection whose endpoint sends between the address of the interface and the attachment,
// however long that takes.
func TestWireRecreatedInterfaceResetsNoBusyConnection(t *testing.T) {
	f := ownFixture(t, options{edge: netlab.EdgeConfig{Queues: 2}, services: []service{toAttached}, extra: "death: {holdSeconds: 300}"})
	edge := f.Edge.Edge
	ctx := inTime(t, 4*within)
	done := make(chan error, 2)
	for _, six := range []bool{false, true} {
		d := &workload.Transfer{Namespace: f.Client, Target: toAttached.at(httpPort, six), Bytes: 1 << 20, Seed: 1, Rate: 100 << 10}
		go func() { done <- d.Download(ctx) }()
		must(t, f.poll(func(context.Context) error {
			if d.Moved() == 0 {
				return errors.New("no byte of the download has come")
			}
			return nil
		}))
	}

	was, err := edge.Interface("eth1")
	must(t, err)
	must(t, edge.Delete("eth1"))
	f.absent(t, "eth1")
	f.addGuarded(t, was.Attrs().HardwareAddr)

	must(t, f.weir.Signal(syscall.SIGSTOP))
	before, err := edge.Counters()
	must(t, err)
	sent, err := f.ZoneA.Counters()
	must(t, err)
	made, err := edge.Interface("eth1")
	must(t, err)
	must(t, edge.Netlink().LinkSetUp(made))
	for _, a := range onNetwork(netlab.FabricNet, 1) {
		must(t, edge.AddAddr("eth1", a))
	}
	f.joinFabric(t)
	must(t, f.poll(func(context.Context) error {
		now, err := f.ZoneA.Counters()
		if n := now.Sub(sent)["TcpRetransSegs"]; err == nil && n < 6 {
			err = fmt.Errorf("the endpoints have sent %d segments again", n)
		}
		return err
	}))
	after, err := edge.Counters()
	must(t, err)
	must(t, f.weir.Signal(syscall.SIGCONT))
	if n := after.Sub(before)["TcpOutRsts"]; n != 0 {
		t.Errorf("the kernel has sent %d RST", n)
	}
	f.attachedTo(t, "eth1", made.Attrs().Index)
	for range 2 {
		must(t, <-done)
	}
}

// addGuarded makes eth1 anew, down, and waits until Weir guards it.
func (f *fixture) addGuarded(t *testing.T, mac net.HardwareAddr) {
	t.Helper()
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.HardwareAddr, attrs.NumTxQueues, attrs.NumRxQueues = "eth1", mac, 2, 2
	veth := netlink.NewVeth(attrs)
	veth.PeerName, veth.PeerNamespace = "edge", netlink.NsFd(f.Fabric.Handle())
	must(t, f.Edge.Edge.Netlink().LinkAdd(veth))
	must(t, f.poll(func(context.Context) error {
		now, err := f.Edge.Edge.Interface("eth1")
		if err == nil && (now.Attrs().Xdp == nil || !now.Attrs().Xdp.Attached) {
			err = errors.New("the new interface, which is down, has no guard")
		}
		return err
	}))
}

// connectGuarded is connectFabric for connections that are busy: packets that come before the
// guard are the kernel's, which resets them.
func (f *fixture) connectGuarded(t *testing.T, mac net.HardwareAddr) {
	t.Helper()
	f.addGuarded(t, mac)
	made, err := f.Edge.Edge.Interface("eth1")
	must(t, err)
	must(t, f.Edge.Edge.Netlink().LinkSetUp(made))
	for _, a := range onNetwork(netlab.FabricNet, 1) {
		must(t, f.Edge.Edge.AddAddr("eth1", a))
	}
	f.joinFabric(t)
	f.routeOverFabric(t)
}
