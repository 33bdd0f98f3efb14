package e2e

import (
	"net/netip"
	"testing"
	"time"

	"github.com/weirlb/weir/perf/netlab"
	"github.com/weirlb/weir/perf/netlab/patience"
	"github.com/weirlb/weir/perf/netlab/workload"
)

// Without any endpoint a new connection is refused, not left to time out.
func TestWireNoEndpointIsRefusedAtOnce(t *testing.T) {
	f := sharedFixture(t)
	bothFamilies(t, func(t *testing.T, six bool) {
		for name, to := range map[string]func(uint16, bool) netip.AddrPort{"node port": toNothing.atNode, "load balancer IP": toNothing.at} {
			t.Run(name, func(t *testing.T) {
				before, err := f.Client.Counters()
				if err != nil {
					t.Fatal(err)
				}
				tcp, err := (&workload.Load{Namespace: f.Client, Targets: []netip.AddrPort{to(httpPort, six)},
					Requests: 5, Timeout: patience.For(3 * time.Second)}).Run(inTime(t, within))
				if err != nil || tcp.Failures()[workload.KindRefused] != 5 {
					t.Errorf("TCP: %v, %v", tcp.Failures(), err)
				}
				after, err := f.Client.Counters()
				if err != nil {
					t.Fatal(err)
				}
				// A RST that the client's kernel did not take would be
				// followed by another SYN.
				if n := after.Sub(before)["TcpExtTCPSynRetrans"]; n > 0 {
					t.Errorf("%d SYNs were sent again", n)
				}
				udp, err := (&workload.UDPLoad{Namespace: f.Client, Source: clientAddr(six), Targets: []netip.AddrPort{to(echoPort, six)},
					Requests: 5, Timeout: patience.For(3 * time.Second), FirstPort: 2000, Ports: 1000}).Run(inTime(t, within))
				if err != nil || udp.Failures()[workload.KindRefused] != 5 {
					t.Errorf("UDP: %v, %v", udp.Failures(), err)
				}
			})
		}
	})
}

// Under Local policy without a local endpoint packets vanish, so that a load
// balancer in front tries another node, while endpoints exist elsewhere.
func TestWireEmptyLocalPolicyDrops(t *testing.T) {
	f := sharedFixture(t)
	bothFamilies(t, func(t *testing.T, six bool) {
		before := f.drops(t)
		tcp, err := (&workload.Load{Namespace: f.Client, Targets: []netip.AddrPort{toNoLocal.at(httpPort, six)},
			Requests: 1, Timeout: 500 * time.Millisecond}).Run(inTime(t, within))
		if err != nil || tcp.Failures()[workload.KindTimeout] != 1 {
			t.Errorf("TCP: %v, %v", tcp.Failures(), err)
		}
		udp, err := (&workload.UDPLoad{Namespace: f.Client, Source: clientAddr(six), Targets: []netip.AddrPort{toNoLocal.at(echoPort, six)},
			Requests: 1, Timeout: 500 * time.Millisecond}).Run(inTime(t, within))
		if err != nil || udp.Failures()[workload.KindTimeout] != 1 {
			t.Errorf("UDP: %v, %v", udp.Failures(), err)
		}
		if after := f.drops(t); after < before+2 {
			t.Errorf("%d drops were counted, want at least 2", after-before)
		}
	})
}

// drops is the sum of all drops that Weir counted.
func (f *fixture) drops(t *testing.T) uint64 {
	t.Helper()
	status, err := f.admin.Status(inTime(t, within))
	if err != nil {
		t.Fatal(err)
	}
	var sum uint64
	for _, n := range status.Drops {
		sum += n
	}
	return sum
}

func clientAddr(six bool) netip.Addr {
	if six {
		return netlab.Host6(netlab.ClientNet, 2)
	}
	return netlab.Host4(netlab.ClientNet, 2)
}
