package e2e

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/perf/netlab"
)

// Anybody can have attempts to connect fail: by forged SYNs whose answers find no way, or from behind a
// path that loses them. The endpoints answer others, and stay. An attempt by which an endpoint is suspected
// has the node connect to it, which ends the suspicion.
func TestWireForgedAttemptsEjectNoEndpoint(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		mode string
		two  []endpoint
		// attack makes attempts fail, or seem to.
		attack func(t *testing.T, f *fixture, to netip.AddrPort)
		// suspected: they count as failed.
		suspected bool
	}{
		"forged SYNs whose answers find no way": {"dnat", []endpoint{pod, onNode}, forgeSYNs, true},
		"a client that hears no answers":        {"nat", []endpoint{attached, routed}, hearNothing, false},
	} {
		t.Run(name, func(t *testing.T) {
			two := service{name: "two", index: 31, endpoints: c.two}
			f := ownFixture(t, options{services: []service{two}, extra: "forwarding: {mode: " + c.mode + "}\n"})
			bothFamilies(t, func(t *testing.T, six bool) {
				for range 3 {
					c.attack(t, f, two.at(echoPort, six))
				}
				for _, e := range f.attempted(t, six) {
					if e.Health.State != "unchecked" || (e.Attempts.FailedInARow > 0) != c.suspected {
						t.Errorf("%s: %+v, %+v", e.Address, e.Health, e.Attempts)
					}
				}
				if got := f.serversOf(t, two.at(echoPort, six)); len(got) != 2 {
					t.Errorf("new connections go to %v alone", got)
				}
				for _, e := range f.attempted(t, six) {
					if e.Attempts.FailedInARow > 0 {
						t.Errorf("%s is suspected, although it answers clients: %+v", e.Address, e.Attempts)
					}
				}
			})
		})
	}
}

// attempted are the TCP endpoints of the echo port, in a family.
func (f *fixture) attempted(t *testing.T, six bool) (list []api.EndpointState) {
	t.Helper()
	l, err := f.admin.Endpoints(inTime(t, within), "test/two")
	must(t, err)
	for _, e := range l.Endpoints {
		if at := netip.MustParseAddrPort(e.Address); e.Protocol == "TCP" && at.Port() == echoTarget && at.Addr().Is6() == six {
			list = append(list, e)
		}
	}
	if len(list) != 2 {
		t.Fatalf("%d endpoints", len(list))
	}
	return list
}

// forgeSYNs sends SYNs from many sources, until attempts at both endpoints have failed as often as it takes
// to suspect them, and no shorter than the node takes to look at them twice.
func forgeSYNs(t *testing.T, f *fixture, to netip.AddrPort) {
	for _, n := range []*netlab.Namespace{f.Pod, f.Edge.Edge} {
		defer filtering(t, n, "ip saddr 44.0.0.0/8 drop; ip6 saddr 2001:db8::/32 drop")()
	}
	flood := newSYNFlood(t, f, to, 0)
	rng := rand.New(rand.NewPCG(1, 2))
	failed := map[string]uint64{}
	must(t, f.poll(func(ctx context.Context) error {
		var frames [][]byte
		for range 40 {
			frames = append(frames, flood.packet(rng))
		}
		for range 2 { // the second is a SYN that is sent again
			for _, frame := range frames {
				if err := flood.tap.Send(frame); err != nil && !errors.Is(err, syscall.ENOBUFS) {
					return err
				}
			}
			pauseFor(ctx, 1100*time.Millisecond)
		}
		for _, e := range f.attempted(t, to.Addr().Is6()) {
			if failed[e.Address] == 0 {
				failed[e.Address] = 1 + e.Attempts.Unanswered
			}
			if e.Attempts.FailedInARow < 5 || e.Attempts.Unanswered < failed[e.Address] {
				return errors.New("too few attempts have failed")
			}
		}
		return nil
	}))
}

// hearNothing connects from where answers do not arrive.
func hearNothing(t *testing.T, f *fixture, to netip.AddrPort) {
	defer filtering(t, f.Client, "tcp sport 7 drop")()
	answered := func() (n uint64) {
		for _, e := range f.attempted(t, to.Addr().Is6()) {
			n += e.Attempts.Answered
		}
		return n
	}
	before := answered()
	ctx, cancel := context.WithTimeout(t.Context(), 1500*time.Millisecond) // a SYN is sent twice
	defer cancel()
	f.tries(ctx, "tcp", to)
	must(t, f.poll(func(context.Context) error {
		if answered() == before {
			return errors.New("no endpoint has answered: no attempt was made")
		}
		return nil
	}))
}
