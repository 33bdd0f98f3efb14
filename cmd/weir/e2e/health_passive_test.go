package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/perf/netlab"
	"github.com/weirlb/weir/perf/netlab/patience"
	"github.com/weirlb/weir/perf/netlab/workload"
)

// refusing has a namespace ignore TCP to the echo servers, or refuse it, until undo is called.
func refusing(t *testing.T, n *netlab.Namespace, verdict string) (undo func()) {
	t.Helper()
	return filtering(t, n, "tcp dport 7777 tcp flags syn / syn,ack "+verdict)
}

// filtering has a namespace filter what it receives by a rule, until undo is called.
func filtering(t *testing.T, n *netlab.Namespace, rule string) (undo func()) {
	t.Helper()
	nft := func(text string) {
		t.Helper()
		must(t, n.Do(func() error {
			out, err := exec.Command("nft", text).CombinedOutput()
			if err != nil {
				return fmt.Errorf("%w: %s", err, out)
			}
			return nil
		}))
	}
	nft("table inet ill { chain in { type filter hook input priority 0; " + rule + "; }; }")
	return func() { nft("delete table inet ill") }
}

// tries connects many times at once, by UDP with a datagram.
func (f *fixture) tries(ctx context.Context, network string, to netip.AddrPort) {
	ctx, cancel := context.WithTimeout(ctx, patience.For(1500*time.Millisecond))
	defer cancel()
	var all sync.WaitGroup
	for range 16 {
		all.Go(func() {
			if c, err := f.Client.DialContext(ctx, network, to.String()); err == nil {
				if network == "udp" {
					_, _ = c.Write([]byte(workload.WhoAreYou))
					pauseFor(ctx, 200*time.Millisecond) // the answer is for this socket
				}
				c.Close()
			}
		})
	}
	all.Wait()
}

// An endpoint that is silent, or refuses connections or datagrams, is ejected without any check, and comes back.
func TestWirePassiveHealthCheck(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, protocol, rule, reason string }{
		{"silent", "TCP", "tcp dport 7777 tcp flags syn / syn,ack drop", "no answer in 1s"},
		{"RST", "TCP", "tcp dport 7777 tcp flags syn / syn,ack reject with tcp reset", "connection refused"},
		{"port unreachable", "UDP", "udp dport 7777 reject with icmpx port-unreachable", "connection refused"},
	} {
		t.Run(c.name, func(t *testing.T) {
			two := service{name: "two", index: 31, endpoints: []endpoint{attached, routed}}
			f := ownFixture(t, options{services: []service{two}})
			// The node's own datagram is to be refused beside those of clients: a host limits its errors.
			must(t, f.ZoneB.SetSysctl("net/ipv4/icmp_ratelimit", "0"))
			must(t, f.ZoneB.SetSysctl("net/ipv6/icmp/ratelimit", "0"))
			undo := filtering(t, f.ZoneB, c.rule)
			bothFamilies(t, func(t *testing.T, six bool) {
				must(t, f.poll(func(ctx context.Context) error {
					f.tries(ctx, strings.ToLower(c.protocol), two.at(echoPort, six))
					l, err := f.admin.Endpoints(ctx, "test/two")
					if err != nil {
						return err
					}
					for _, e := range l.Endpoints {
						if e.Address == netip.AddrPortFrom(routed.addr(six), echoTarget).String() && e.Protocol == c.protocol {
							if e.Health.State == api.HealthEjected && strings.Contains(e.Health.Reason, c.reason) && e.Health.FailedConnections >= 5 {
								return nil
							}
							return fmt.Errorf("%+v, %+v", e.Health, e.Attempts)
						}
					}
					return errors.New("the endpoint is not listed")
				}))
				if c.protocol == "UDP" {
					for range 20 {
						if got := asked(t, f.dialUDP(t, two.at(echoPort, six))); got != "attached" {
							t.Errorf("a new flow to %q", got)
						}
					}
				} else if got := f.serversOf(t, two.at(echoPort, six)); got[routed.addr(six)] > 0 {
					t.Errorf("new connections to an ejected endpoint: %v", got)
				}
			})
			undo()
			if c.name != "silent" {
				return
			}
			const ejection = 30 * time.Second // at first
			f.untilHealthAfter(t, ejection, "test/two", routed, fmt.Sprint("TCP", echoTarget), "unchecked")
		})
	}
}

// While of two endpoints one is silent or refuses, each connection is made without any check: the SYN that
// the client sends again after a second goes to the other.
func TestWireASYNSentAgainGoesElsewhere(t *testing.T) {
	t.Parallel()
	for _, cache := range caches {
		// In dnat the endpoint is behind the host veth: others are served by nat.
		for mode, endpoints := range map[string][]endpoint{"nat": {attached, routed}, "dnat": {onNode, pod}} {
			t.Run(mode+", cache="+cache, func(t *testing.T) {
				two := service{name: "two", index: 31, endpoints: endpoints, annotations: map[string]string{"weir.dev/passive-health-check": "off"}}
				extra := "flowCache: {mode: " + cache + "}\nforwarding: {mode: " + mode + "}\n"
				f := ownFixture(t, options{services: []service{two}, extra: extra})
				for _, verdict := range []string{"drop", "reject with tcp reset", "reject with icmpx port-unreachable"} {
					undo := refusing(t, map[string]*netlab.Namespace{"nat": f.ZoneB, "dnat": f.Pod}[mode], verdict)
					bothFamilies(t, func(t *testing.T, six bool) { f.connectAll(t, two.at(echoPort, six), verdict) })
					undo()
				}
			})
		}
	}
}

// connectAll makes connections to a Service of which one of two endpoints does not serve.
func (f *fixture) connectAll(t *testing.T, to netip.AddrPort, verdict string) {
	var all sync.WaitGroup
	var late atomic.Int32
	for range 20 {
		all.Go(func() {
			began := time.Now()
			c, err := f.Client.DialContext(inTime(t, within), "tcp", to.String())
			if err != nil {
				t.Errorf("%s: %v", verdict, err)
				return
			}
			defer c.Close()
			if err := workload.PingPong(c, "hello", within); err != nil {
				t.Errorf("%s: %v", verdict, err)
			}
			if took := time.Since(began); took > time.Second {
				late.Add(1)
				if took > patience.For(2500*time.Millisecond) {
					t.Errorf("%s: a connection took %v", verdict, took)
				}
			}
		})
	}
	all.Wait()
	if n := late.Load(); n == 0 || n == 20 {
		t.Errorf("%s: %d of 20 connections took a second", verdict, n)
	}
}
