package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/weirlb/weir/cmd/weir/problem"
	"github.com/weirlb/weir/perf/netlab"
)

// Endpoints of the modes without translation are probed by the path of client packets: they fail while they
// do not decapsulate, or lack the frontend's address, although their servers answer at their own addresses.
func TestWireHealthCheckOfDirectServerReturn(t *testing.T) {
	t.Parallel()
	f := ownFixture(t, options{stopped: true, frontends: len(directServices) * 4})
	text := modeManifests(directServices, directPorts)
	text = strings.ReplaceAll(text, "weir.dev/forwarding-mode", `weir.dev/health-check: "{httpGet: {port: http}, periodSeconds: 1, failureThreshold: 2, successThreshold: 1}", weir.dev/forwarding-mode`)
	must(t, os.WriteFile(f.path("manifests/direct.yaml"), []byte(text), 0o644))
	must(t, f.start())
	until := func(state, reason string, tunnels bool) {
		t.Helper()
		must(t, f.poll(func(ctx context.Context) error {
			for _, s := range directServices {
				if tunnels && s.mode == "l2dsr" {
					continue
				}
				name := fmt.Sprintf("default/%s-%d", s.mode, s.index)
				l, err := f.admin.Endpoints(ctx, name)
				if err != nil {
					return err
				}
				if want := map[bool]int{false: 4, true: 2}[s.cross]; len(l.Endpoints) != want {
					return fmt.Errorf("%s has %d endpoints, want %d", name, len(l.Endpoints), want)
				}
				for _, e := range l.Endpoints {
					if e.Health.State != state || !strings.HasSuffix(e.Health.Reason, reason) {
						return fmt.Errorf("%s: %s is %+v, want %s %q", name, e.Address, e.Health, state, reason)
					}
				}
			}
			return nil
		}))
	}
	must(t, f.poll(func(ctx context.Context) error { // eth1 has a strict filter, and answers do not take the default route
		s, err := f.admin.Status(ctx)
		if err != nil {
			return err
		}
		for _, p := range s.Problems {
			if p.Kind == problem.HealthChecks && strings.Contains(p.Reason, "net.ipv4.conf.eth1.rp_filter is strict") {
				return nil
			}
		}
		return fmt.Errorf("problems %v", s.Problems)
	}))
	must(t, f.Edge.Edge.SetSysctl("net/ipv4/conf/eth1/rp_filter", "2"))
	until("failing", "no answer in 1s", false)
	undo := f.decapsulate(t)
	until("passing", "", false)
	f.expectProbesAlone(t)

	// A Weir that was killed leaves pair, routes and rules, which the next makes anew.
	must(t, f.weir.Kill())
	must(t, f.start())
	until("passing", "", false)
	undo()
	until("failing", "no answer in 1s", true)
	for _, a := range []netip.Addr{netlab.Host4(netlab.LBNet, 51), netlab.Host6(netlab.LBNet, 51)} {
		must(t, f.ZoneA.Do(func() error {
			return exec.Command("ip", "address", "delete", netip.PrefixFrom(a, a.BitLen()).String(), "dev", "lo").Run()
		}))
	}
	until("failing", "no answer in 1s", false)
	f.untilDirectRefuses(t, false)
	replace(t, f.path("manifests/direct.yaml"), []byte(strings.ReplaceAll(text, "weir.dev/forwarding-mode", "weir.dev/health-check-fail: closed, weir.dev/forwarding-mode")))
	f.untilDirectRefuses(t, true)
	must(t, f.weir.Kill())
	must(t, os.WriteFile(f.path("manifests/direct.yaml"), []byte(modeManifests(directServices, directPorts)), 0o644))
	must(t, f.start())
	if _, err := f.Edge.Edge.Interface("weir-probe"); err == nil {
		t.Error("the pair of the probes of the last process is still there")
	}
	for _, family := range []string{"-4", "-6"} {
		if rules := f.rules(t, family); strings.Contains(rules, "7766") {
			t.Errorf("the rule for probes of the last process is still there:\n%s", rules)
		}
	}
	must(t, f.weir.Stop(within))
}

// untilDirectRefuses waits until all of directServices refuse connections, or send all to their endpoints.
func (f *fixture) untilDirectRefuses(t *testing.T, refuses bool) {
	t.Helper()
	for _, s := range directServices {
		name := fmt.Sprintf("default/%s-%d", s.mode, s.index)
		must(t, f.poll(func(ctx context.Context) error {
			l, err := f.admin.Endpoints(ctx, name)
			if err != nil {
				return err
			}
			for _, e := range l.Endpoints {
				if e.Used == refuses {
					return fmt.Errorf("%s: %s: %+v", name, e.Address, e)
				}
			}
			wait := 300 * time.Millisecond // a refusal that comes later is not expected
			if refuses {
				wait = within
			}
			ctx, cancel := context.WithTimeout(ctx, wait)
			defer cancel()
			c, err := f.Client.DialContext(ctx, "tcp", netip.AddrPortFrom(netlab.Host4(netlab.LBNet, s.index), httpTarget).String())
			if err == nil {
				c.Close()
			}
			if errors.Is(err, syscall.ECONNREFUSED) != refuses {
				return fmt.Errorf("%s: %v", name, err)
			}
			return nil
		}))
	}
}

// expectProbesAlone checks that packets with the mark of the return path do not take the path of probes.
func (f *fixture) expectProbesAlone(t *testing.T) {
	t.Helper()
	var list []netlink.Route
	must(t, f.Edge.Edge.Do(func() (err error) {
		list, err = netlink.RouteGetWithOptions(netlab.Host4(netlab.LBNet, 51).AsSlice(), &netlink.RouteGetOptions{Mark: 0x10})
		return err
	}))
	probes, err := f.Edge.Edge.Interface("weir-probe")
	must(t, err)
	if list[0].LinkIndex == probes.Attrs().Index {
		t.Error("answers to clients' own addresses enter the pair of the probes")
	}
}

// rules are the routing rules of the node.
func (f *fixture) rules(t *testing.T, family string) (rules string) {
	t.Helper()
	must(t, f.Edge.Edge.Do(func() error {
		out, err := exec.Command("ip", family, "rule").CombinedOutput()
		rules = string(out)
		return err
	}))
	return rules
}
