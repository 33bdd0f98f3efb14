package e2e

import (
	"context"
	"errors"
	"fmt"
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
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.HardwareAddr, attrs.NumTxQueues, attrs.NumRxQueues = "eth1", was.Attrs().HardwareAddr, 2, 2
	veth := netlink.NewVeth(attrs)
	veth.PeerName, veth.PeerNamespace = "edge", netlink.NsFd(f.Fabric.Handle())
	must(t, edge.Netlink().LinkAdd(veth))
	must(t, f.poll(func(context.Context) error {
		now, err := edge.Interface("eth1")
		if err == nil && (now.Attrs().Xdp == nil || !now.Attrs().Xdp.Attached) {
			err = errors.New("the new interface, which is down, has no guard")
		}
		return err
	}))

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
