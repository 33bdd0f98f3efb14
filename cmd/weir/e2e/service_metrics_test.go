package e2e

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/perf/netlab"
	"github.com/weirlb/weir/perf/netlab/workload"
)

// The metrics have the traffic, the refused packets and the endpoints of each Service.
func TestWireMetricsPerService(t *testing.T) {
	f := ownFixture(t, options{services: []service{toAttached, toNothing}, extra: "metricsBindAddress: 127.0.0.1:9464"})
	const exchanges = 3
	for i := range exchanges {
		must(t, f.exchangeOnce(toAttached, i%2 == 1))
	}
	if err := f.exchangeOnce(toNothing, false); err == nil {
		t.Error("a Service without endpoints answers")
	}
	must(t, f.poll(func(context.Context) error {
		metrics := f.metrics(t)
		for _, line := range []string{
			fmt.Sprintf("weir_service_new_connections_total{service=%q} %d", "test/attached", exchanges),
			fmt.Sprintf("weir_service_dropped_packets_total{reason=%q,service=%q} 1", "no-endpoint", "test/nothing"),
			fmt.Sprintf("weir_service_packets_total{from=%q,service=%q} ", "endpoint", "test/attached"),
			fmt.Sprintf("weir_service_handshake_duration_seconds_count{service=%q} ", "test/attached"),
			fmt.Sprintf("weir_service_endpoints{service=%q,tier=", "test/attached"),
		} {
			if !strings.Contains(metrics, line) {
				return fmt.Errorf("the metrics have no %s:\n%s", line, linesWith(metrics, "weir_service_"))
			}
		}
		return nil
	}))
}

func linesWith(text, part string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		if strings.Contains(line, part) {
			b.WriteString(line)
		}
	}
	return b.String()
}

// An endpoint whose answers find no route does not answer: the client's kernel sends its
// SYN again, which the Service's metrics show, and the connection lives when the route is back.
func TestWireSYNsThatComeAgainAreCounted(t *testing.T) {
	f := ownFixture(t, options{services: []service{toAttached}, extra: "metricsBindAddress: 127.0.0.1:9464"})
	f.echo(t, toAttached)
	count := fmt.Sprintf("weir_service_retransmissions_total{segment=%q,service=%q} ", "syn", "test/attached")
	if metrics := f.metrics(t); !strings.Contains(metrics, count+"0\n") {
		t.Fatalf("before a loss: %s", linesWith(metrics, "retransmissions"))
	}
	nowhere := &netlink.Route{Type: unix.RTN_BLACKHOLE, Dst: &net.IPNet{
		IP: netlab.Host4(netlab.FabricNet, 1).AsSlice(), Mask: net.CIDRMask(32, 32)}}
	must(t, f.ZoneA.Netlink().RouteAdd(nowhere))
	dialed := make(chan error, 1)
	go func() {
		c, err := f.Client.DialContext(inTime(t, within), "tcp", toAttached.at(echoPort, false).String())
		if err == nil {
			err = errors.Join(workload.PingPong(c, "hello", within), c.Close())
		}
		dialed <- err
	}()
	err := f.poll(func(context.Context) error {
		metrics := f.metrics(t)
		if strings.Contains(metrics, count+"0\n") {
			return fmt.Errorf("no SYN has come again: %s", linesWith(metrics, "retransmissions"))
		}
		return nil
	})
	must(t, errors.Join(err, f.ZoneA.Netlink().RouteDel(nowhere)))
	must(t, <-dialed)
	s := askJSON[api.ServiceList](t, f, "services").Services[0]
	if s.Retransmissions.SYNs == 0 || s.FailedHandshakes != 0 {
		t.Errorf("%+v", s)
	}
	series := fmt.Sprintf("weir_endpoint_attempts_total{endpoint=%q,outcome=%q,port=%q,service=%q} 1\n",
		netip.AddrPortFrom(attached.addr(false), echoTarget), "unanswered", "echo/TCP", "test/attached")
	if metrics := f.metrics(t); !strings.Contains(metrics, series) {
		t.Errorf("no %s in %s", series, linesWith(metrics, "weir_endpoint"))
	}
}
