package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"

	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/perf/netlab"
	"github.com/weirlb/weir/perf/netlab/workload"
)

// probe asks a URL of the edge node from inside.
func (f *fixture) probe(t *testing.T, url string) (int, string) {
	t.Helper()
	client := &http.Client{Timeout: within, Transport: &http.Transport{DialContext: f.Edge.Edge.DialContext}}
	defer client.CloseIdleConnections()
	answer, err := client.Get(url)
	must(t, err)
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	must(t, err)
	return answer.StatusCode, string(body)
}

// shows checks what the health endpoints and the metrics say while an interface
// is attached, or absent.
func (f *fixture) shows(t *testing.T, name string, attached bool) {
	t.Helper()
	f.showsReady(t, name, attached, attached)
}

// showsReady is shows of a node that may be ready without the interface.
func (f *fixture) showsReady(t *testing.T, name string, attached, ready bool) {
	t.Helper()
	want := map[string]int{"healthz": http.StatusOK, "readyz": http.StatusOK, "livez": http.StatusOK}
	metric := fmt.Sprintf("weir_interface_attached{device=%q} 1", name)
	if !ready {
		want["healthz"], want["readyz"] = http.StatusServiceUnavailable, http.StatusServiceUnavailable
	}
	if !attached {
		metric = fmt.Sprintf("weir_interface_attached{device=%q} 0", name)
	}
	for path, code := range want {
		got, body := f.probe(t, "http://127.0.0.1:9465/"+path)
		if got != code || code != http.StatusOK && !strings.Contains(body, name) {
			t.Errorf("%s while %s is attached=%t: %d %s", path, name, attached, got, body)
		}
	}
	if _, body := f.probe(t, "http://127.0.0.1:9464/metrics"); !strings.Contains(body, metric+"\n") {
		t.Errorf("there is no %s", metric)
	}
}

// attachedTo waits until the status has every interface attached and, under this
// name, the one of this index.
func (f *fixture) attachedTo(t *testing.T, name string, index int) *api.Status {
	t.Helper()
	var found *api.Status
	must(t, f.poll(func(ctx context.Context) error {
		s, err := f.admin.Status(ctx)
		if err != nil {
			return err
		}
		if i := interfaceOf(s, name); i == nil || i.IfIndex != index {
			return fmt.Errorf("%s: %+v, want index %d", name, i, index)
		}
		found = s
		return s.Attached()
	}))
	return found
}

// absent waits until the status says that an interface is gone.
func (f *fixture) absent(t *testing.T, name string) {
	t.Helper()
	must(t, f.poll(func(ctx context.Context) error {
		s, err := f.admin.Status(ctx)
		if err != nil {
			return err
		}
		for _, w := range s.Warnings {
			if strings.Contains(w, "interface "+name+" is gone") {
				return nil
			}
		}
		return fmt.Errorf("no warning: %q", s.Warnings)
	}))
}

func (f *fixture) indexOf(t *testing.T, name string) int {
	t.Helper()
	link, err := f.Edge.Edge.Interface(name)
	must(t, err)
	return link.Attrs().Index
}

// connectClient makes the link to the clients anew, with its routes. Its ends have
// other addresses than before: clients and Weir learn them.
func (f *fixture) connectClient(t *testing.T, queues int) {
	t.Helper()
	must(t, netlab.Connect(
		netlab.End{Namespace: f.Client, Name: "eth0", Addrs: onNetwork(netlab.ClientNet, 2)},
		netlab.End{Namespace: f.Edge.Edge, Name: "eth0", Addrs: onNetwork(netlab.ClientNet, 1)}, netlab.LinkConfig{Queues: queues}))
	must(t, f.Client.AddRoute("eth0", netip.PrefixFrom(netlab.Host4(netlab.LBNet, 0), 24), netlab.Host4(netlab.ClientNet, 1)))
	must(t, f.Client.AddRoute("eth0", netip.PrefixFrom(netlab.Host6(netlab.LBNet, 0), 64), netlab.Host6(netlab.ClientNet, 1)))
	f.routeEdge(t)
}

func (f *fixture) routeEdge(t *testing.T) {
	t.Helper()
	must(t, f.Edge.Edge.AddRoute("eth0", netip.MustParsePrefix("0.0.0.0/0"), netlab.Host4(netlab.ClientNet, 2)))
	must(t, f.Edge.Edge.AddRoute("eth0", netip.MustParsePrefix("::/0"), netlab.Host6(netlab.ClientNet, 2)))
}

// connectFabric makes the link to the backends anew. The kernel has packets of queues without a
// worker.
func (f *fixture) connectFabric(t *testing.T, mac net.HardwareAddr, queues int) {
	t.Helper()
	must(t, netlab.Connect(
		netlab.End{Namespace: f.Edge.Edge, Name: "eth1", MAC: mac, Addrs: onNetwork(netlab.FabricNet, 1)},
		netlab.End{Namespace: f.Fabric, Name: "edge"}, netlab.LinkConfig{Queues: queues}))
	f.joinFabric(t)
	f.routeOverFabric(t)
}

// routeOverFabric adds the routes over a new eth1.
func (f *fixture) routeOverFabric(t *testing.T) {
	t.Helper()
	must(t, f.Edge.Edge.AddRoute("eth1", netip.PrefixFrom(netlab.Host4(netlab.ZoneBNet, 0), 24), netlab.Host4(netlab.FabricNet, 254)))
	must(t, f.Edge.Edge.AddRoute("eth1", netip.PrefixFrom(netlab.Host6(netlab.ZoneBNet, 0), 64), netlab.Host6(netlab.FabricNet, 254)))
}

// joinFabric makes the far end of a new link a port of the fabric's bridge, up.
func (f *fixture) joinFabric(t *testing.T) {
	t.Helper()
	port, err := f.Fabric.Interface("edge")
	must(t, err)
	must(t, f.Fabric.Netlink().LinkSetUp(port))
	bridge, err := f.Fabric.Interface("br0")
	must(t, err)
	must(t, f.Fabric.Netlink().LinkSetMasterByIndex(port, bridge.Attrs().Index))
}

func onNetwork(network, host uint8) []netip.Prefix {
	return []netip.Prefix{netip.PrefixFrom(netlab.Host4(network, host), 24), netip.PrefixFrom(netlab.Host6(network, host), 64)}
}

// An interface that is deleted and made anew is attached again, as often as that
// happens. Connections go on, others are not disturbed meanwhile, no frame is
// lost, and the health endpoints tell.
func TestWireRecreatedInterfaceIsAttachedAgain(t *testing.T) {
	f := ownFixture(t, options{edge: netlab.EdgeConfig{Queues: 2}, services: kinds})
	f.shows(t, "eth0", true)
	conns := f.openAll(t)
	status, err := f.admin.Status(inTime(t, within))
	must(t, err)
	free := freeFrames(status)
	for range 4 {
		must(t, f.Edge.Edge.Delete("eth0"))
		f.absent(t, "eth0")
		f.shows(t, "eth0", false)
		f.connectClient(t, 2)
		status := f.attachedTo(t, "eth0", f.indexOf(t, "eth0"))
		for _, w := range status.Warnings {
			if strings.Contains(w, "gone") {
				t.Errorf("the warning stays: %s", w)
			}
		}
		f.shows(t, "eth0", true)
		f.checkAlive(t, conns, "after its interface was made anew")
		bothFamilies(t, func(t *testing.T, six bool) {
			for _, s := range []service{toAttached, toPod} {
				f.checkLoad(t, f.Client, s.at(httpPort, six), 20)
			}
		})
	}
	must(t, f.poll(func(ctx context.Context) error {
		s, err := f.admin.Status(ctx)
		if err != nil {
			return err
		}
		for n, now := range freeFrames(s) {
			if now+uint64(32*len(s.Interfaces)) < free[n] {
				err = errors.Join(err, fmt.Errorf("worker %d has %d free frames, and had %d", n, now, free[n]))
			}
		}
		return err
	}))
}

// While the interface to some backends is gone, and when it is attached again,
// connections to others go on without a loss, and its own afterwards.
func TestWireRecreatedInterfaceDisturbsNoOther(t *testing.T) {
	f := ownFixture(t, options{edge: netlab.EdgeConfig{Queues: 2}, services: kinds})
	conns := f.openAll(t)
	ctx, cancel := context.WithCancel(inTime(t, 2*within))
	done := make(chan *workload.Record, 1)
	go func() {
		r, err := (&workload.Load{Namespace: f.Client, Concurrency: 2, Targets: []netip.AddrPort{toPod.at(httpPort, false), toPod.at(httpPort, true)}}).Run(ctx)
		if err != nil {
			t.Error(err)
		}
		done <- r
	}()
	for range 3 {
		link, err := f.Edge.Edge.Interface("eth1")
		must(t, err)
		must(t, f.Edge.Edge.Delete("eth1"))
		f.absent(t, "eth1")
		f.connectFabric(t, link.Attrs().HardwareAddr, 2) // a NIC keeps its address
		f.attachedTo(t, "eth1", f.indexOf(t, "eth1"))
	}
	cancel()
	if r := <-done; r.Err() != nil || r.Requests() == 0 {
		t.Errorf("%d requests meanwhile, %v", r.Requests(), r.Err())
	}
	f.checkAlive(t, conns, "after the interface to its backend was made anew")
	f.checkLoad(t, f.Client, toAttached.at(httpPort, false), 20)
}

// A device that comes back with another number of queues serves all the same, and
// the status says so.
func TestWireRecreatedInterfaceHasOtherQueues(t *testing.T) {
	f := ownFixture(t, options{edge: netlab.EdgeConfig{Queues: 2}, services: []service{toAttached, toPod}})
	for _, c := range []struct {
		queues int
		say    []string
	}{
		{1, []string{"came back with 1 receive queues and had 2"}},
		{3, []string{"came back with 3 receive queues and had 1", "1 of its 3 receive queues have no worker"}},
		{2, nil},
	} {
		must(t, f.Edge.Edge.Delete("eth0"))
		f.absent(t, "eth0")
		f.connectClient(t, c.queues)
		s := f.attachedTo(t, "eth0", f.indexOf(t, "eth0"))
		all := strings.Join(s.Warnings, "\n")
		for _, say := range c.say {
			if !strings.Contains(all, say) {
				t.Errorf("%d queues: %q is not in %q", c.queues, say, s.Warnings)
			}
		}
		if c.say == nil && strings.Contains(all, "no worker") {
			t.Errorf("%d queues: %q", c.queues, s.Warnings)
		}
		if c.queues <= 2 { // else the kernel has what comes by the third
			f.checkLoad(t, f.Client, toPod.at(httpPort, false), 50)
			f.checkLoad(t, f.Client, toAttached.at(httpPort, true), 50)
		}
	}
}

// A device that is lent to another network namespace comes back with its index and
// its name, but without its program and sockets. One that is renamed keeps them.
func TestWireInterfaceThatWasMovedOrRenamed(t *testing.T) {
	f := ownFixture(t, options{edge: netlab.EdgeConfig{Queues: 2}, services: []service{toAttached}})
	edge := f.Edge.Edge
	link, err := edge.Interface("eth0")
	must(t, err)

	must(t, edge.Netlink().LinkSetName(link, "wan0"))
	f.checkLoad(t, f.Client, toAttached.at(httpPort, false), 5)
	must(t, edge.Netlink().LinkSetName(link, "eth0"))
	f.checkLoad(t, f.Client, toAttached.at(httpPort, false), 5)

	spare, err := f.Namespace("spare")
	must(t, err)
	must(t, edge.Netlink().LinkSetNsFd(link, int(spare.Handle())))
	must(t, spare.Netlink().LinkSetNsFd(link, int(edge.Handle())))
	back, err := edge.Interface("eth0")
	must(t, err)
	if back.Attrs().Index != link.Attrs().Index {
		t.Fatalf("the index is %d, and was %d: this is not what is to be tested", back.Attrs().Index, link.Attrs().Index)
	}
	must(t, edge.Netlink().LinkSetUp(back))
	for _, p := range onNetwork(netlab.ClientNet, 1) {
		must(t, edge.AddAddr("eth0", p))
	}
	f.routeEdge(t)
	must(t, f.poll(func(context.Context) error {
		if !strings.Contains(f.logTail(), "interface is attached again") {
			return errors.New("it is not attached again")
		}
		return nil
	}))
	f.attachedTo(t, "eth0", link.Attrs().Index)
	bothFamilies(t, func(t *testing.T, six bool) { f.checkLoad(t, f.Client, toAttached.at(httpPort, six), 20) })
}

// A VLAN interface that is made anew is followed, with its parent attached or not.
func TestWireRecreatedVLANInterface(t *testing.T) {
	for _, c := range []struct{ name, interfaces string }{
		{"with its parent", "[{name: eth0}, {name: eth0.100}, {name: eth1}]"},
		{"alone", "[{name: eth0.100}, {name: eth1}]"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newStacked(t, "eth0.100", c.interfaces, `[{"Name": "eth0.100", "Kind": "vlan", "Parent": "eth0", "VLAN": 100}]`, nil)
			s.answered(t, toAttached, "eth0", "eth0", 5000, 100)
			for range 2 {
				must(t, s.Edge.Edge.Delete("eth0.100"))
				s.absent(t, "eth0.100")
				s.shows(t, "eth0.100", false)
				s.standIn(t, "eth0.100")
				s.attachedTo(t, "eth0.100", s.indexOf(t, "eth0.100"))
				s.shows(t, "eth0.100", true)
				s.answered(t, toAttached, "eth0", "eth0", 5000, 100) // the flow that there was
				s.answered(t, toPod, "eth0", "eth0", 5001, 100)
			}
			if c.name != "alone" {
				s.checkLoad(t, s.Client, toPod.at(httpPort, false), 20)
			}
		})
	}
}
