package e2e

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/perf/netlab"
)

// A link to an endpoint is lost until new connections are refused, and returns: the next one
// succeeds. It was refused for the failure of the past before, for up to two seconds. The link is
// Weir's own, or beyond a switch, where the node notices neither event.
func TestWireALinkThatReturnsRefusesNoConnection(t *testing.T) {
	f := ownFixture(t, options{services: []service{toAttached}})
	for _, key := range []string{"net/ipv4/neigh/eth1/retrans_time_ms", "net/ipv6/neigh/eth1/retrans_time_ms"} {
		must(t, f.Edge.Edge.SetSysctl(key, "100")) // the kernel gives up in 0.3 s
	}
	for _, link := range []struct {
		name, port string // of the switch
		far        *netlab.Namespace
		farName    string
	}{{"own link", "edge", f.Edge.Edge, "eth1"}, {"link beyond a switch", "zonea", f.ZoneA, "eth0"}} {
		t.Run(link.name, func(t *testing.T) {
			port, err := f.Fabric.Interface(link.port)
			must(t, err)
			bothFamilies(t, func(t *testing.T, six bool) {
				for range 3 {
					f.connects(t, toAttached, six)
					must(t, f.Fabric.Netlink().LinkSetDown(port))
					f.flushNeighbor(t, "eth1", attached.addr(six))
					f.untilRefused(t, toAttached, six)
					must(t, f.Fabric.Netlink().LinkSetUp(port))
					f.untilUp(t, f.Fabric, link.port)
					f.untilUp(t, link.far, link.farName)
					f.connects(t, toAttached, six)
				}
			})
		})
	}
}

// untilRefused makes connections until the client is told that the host is unreachable.
func (f *fixture) untilRefused(t *testing.T, s service, six bool) {
	t.Helper()
	ctx := inTime(t, within)
	for {
		c, err := f.Client.DialContext(ctx, "tcp", s.at(echoPort, six).String())
		switch {
		case err == nil:
			c.Close()
		case errors.Is(err, unix.EHOSTUNREACH):
			return
		case ctx.Err() != nil:
			t.Fatalf("connections are not refused: %v; %s", err, f.whatWasDropped())
		}
	}
}

// untilUp waits until an interface has a carrier.
func (f *fixture) untilUp(t *testing.T, n *netlab.Namespace, name string) {
	t.Helper()
	must(t, f.poll(func(context.Context) error {
		l, err := n.Interface(name)
		if err == nil && l.Attrs().OperState != netlink.OperUp {
			err = fmt.Errorf("%s of %s is %s", name, n.Name(), l.Attrs().OperState)
		}
		return err
	}))
}
