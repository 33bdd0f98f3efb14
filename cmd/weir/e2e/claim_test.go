package e2e

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weirlb/weir/perf/netlab"
	"github.com/weirlb/weir/perf/netlab/workload"
)

// Two Services claim one load balancer IP: that with the better claim has it,
// also when it comes second. Connections of the other go on.
func TestWireFrontendGoesToTheBetterClaim(t *testing.T) {
	ip := []netip.Addr{netlab.Host4(netlab.LBNet, 90), netlab.Host6(netlab.LBNet, 90)}
	second := service{name: "second", index: 31, endpoints: []endpoint{attached}, lb: ip}
	first := service{name: "first", index: 32, endpoints: []endpoint{routed}, lb: ip}
	f := ownFixture(t, options{services: []service{second}})
	conn, err := f.Client.DialContext(inTime(t, within), "tcp", second.at(echoPort, false).String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	answers := func(want string) {
		t.Helper()
		if err := f.poll(func(ctx context.Context) error {
			for _, six := range []bool{false, true} {
				r, err := (&workload.Load{Namespace: f.Client, Targets: []netip.AddrPort{second.at(httpPort, six)}, Requests: 5, Timeout: 5 * time.Second}).Run(ctx)
				if err == nil {
					err = r.Err()
				}
				if got := slices.Sorted(maps.Keys(r.Servers())); err == nil && !slices.Equal(got, []string{want}) {
					err = fmt.Errorf("%v answer", got)
				}
				if err != nil {
					return err
				}
			}
			return nil
		}); err != nil {
			t.Fatalf("want answers of %s: %v", want, err)
		}
	}
	answers("attached")
	replace(t, f.manifest(), render(t, []service{second, first}))
	answers("routed")
	f.checkAlive(t, map[string]net.Conn{"connection": conn}, "the frontend has another Service")
	if err := f.poll(func(ctx context.Context) error { // who lost it is told
		status, err := f.admin.Status(ctx)
		if err == nil && !strings.Contains(fmt.Sprint(status.Problems), "held by Service test/first") {
			err = fmt.Errorf("problems are %v", status.Problems)
		}
		return err
	}); err != nil {
		t.Error(err)
	}
	replace(t, f.manifest(), render(t, []service{second}))
	answers("attached")
	f.checkAlive(t, map[string]net.Conn{"connection": conn}, "the frontend came back")
}
