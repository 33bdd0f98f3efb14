package lan

import (
	"net/netip"
	"time"

	"github.com/weirlb/weir/perf/netlab/patience"
	"github.com/weirlb/weir/perf/netlab/workload"
)

const probeEvery = 10 * time.Millisecond

// probe sends a datagram (udp) to an address, or opens a connection (tcp), every 10 ms until it is
// ended.
func (b *bed) probe(network string, a netip.Addr) *workload.Probe {
	return workload.StartProbe(b.Client, network, netip.AddrPortFrom(a, port), probeEvery, patience.For(500*time.Millisecond))
}
