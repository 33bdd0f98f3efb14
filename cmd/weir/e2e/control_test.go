package e2e

import (
	"net/netip"
	"testing"
	"time"

	"github.com/weirlb/weir/perf/netlab"
)

// controlNet is the network of the link between clients and the fabric, past the edge node.
const controlNet = 50

// controlGroup are connections to an endpoint that do not pass Weir, from the same client in
// the same run. Where they pause, the machine or the generator pauses.
func (f *fixture) controlGroup(t *testing.T) (talks []*talk) {
	t.Helper()
	f.linkPastEdge(t)
	must(t, f.Client.AddRoute("eth1", netip.PrefixFrom(netlab.Host4(netlab.FabricNet, 0), 24), netlab.Host4(controlNet, 1)))
	n := max(20, killedConnections/10)
	for range n {
		to := netip.AddrPortFrom(attached.addr(false), echoTarget)
		c, err := f.Client.DialContext(inTime(t, within), "tcp", to.String())
		must(t, err)
		t.Cleanup(func() { c.Close() })
		talks = append(talks, &talk{conn: c, name: "control", every: time.Duration(killedConnections) * pace(exchangesPerSecond)})
	}
	return talks
}

// linkPastEdge joins clients and the fabric past the edge node: eth1 of the client.
func (f *fixture) linkPastEdge(t *testing.T) {
	t.Helper()
	must(t, netlab.Connect(netlab.End{Namespace: f.Client, Name: "eth1", Addrs: onNetwork(controlNet, 2)},
		netlab.End{Namespace: f.Fabric, Name: "wan", Addrs: onNetwork(controlNet, 1)}, netlab.LinkConfig{}))
	must(t, f.Client.SetSysctl("net/ipv4/conf/all/rp_filter", "0"))
	must(t, f.Client.SetSysctl("net/ipv4/conf/eth1/rp_filter", "0"))
}
