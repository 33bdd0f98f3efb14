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

	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/perf/netlab"
	"github.com/weirlb/weir/perf/netlab/workload"
)

// Two Services of the manifests claim a load balancer IP: the one that serves keeps it, whatever the
// other says. When it goes, the other has the IP, and connections go on.
func TestWireFrontendStaysWithTheServiceThatServes(t *testing.T) {
	t.Parallel()
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
	held := func(by string) {
		t.Helper()
		if err := f.poll(func(ctx context.Context) error { // both are told
			status, err := f.admin.Status(ctx)
			for _, text := range []string{"held by Service test/" + by, "frontend-contested Service test/" + by} {
				if err == nil && !strings.Contains(problemsOf(status), text) {
					err = fmt.Errorf("problems are %s", problemsOf(status))
				}
			}
			return err
		}); err != nil {
			t.Error(err)
		}
	}
	answers("attached")
	replace(t, f.manifest(), render(t, []service{second, first}))
	held("second")
	answers("attached")
	f.checkAlive(t, map[string]net.Conn{"connection": conn}, "another Service claims the frontend")
	replace(t, f.manifest(), render(t, []service{first}))
	answers("routed")
	f.checkAlive(t, map[string]net.Conn{"connection": conn}, "the frontend has another Service")
	replace(t, f.manifest(), render(t, []service{second, first}))
	held("first")
	answers("routed")
	f.checkAlive(t, map[string]net.Conn{"connection": conn}, "its Service came back")
}

// problemsOf has a line per problem: kind, object and reason.
func problemsOf(s *api.Status) string {
	var b strings.Builder
	for _, p := range s.Problems {
		fmt.Fprintf(&b, "%s %s %s\n", p.Kind, p.Object, p.Reason)
	}
	return b.String()
}
