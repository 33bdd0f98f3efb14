package fleet

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/perf/netlab"
)

// A node that is cordoned in the cluster announces nothing, with announce.honorCordon, and serves
// the packets that still come.
func TestKubeWireCordonedNodeWithdraws(t *testing.T) {
	c := newClustered(t, "honorCordon: true")
	c.run(t, "log")
	four := netlab.Host4(netlab.FleetNet, netlab.FleetRouter)
	c.apply.All(peer("four", four, "") + "---\n" + poolsAndRoutes)
	here := netlab.Host4(netlab.FleetNet, netlab.FleetFirstNode)
	c.untilHops(netip.PrefixFrom(vip4, 32), here)
	conn := c.connect(vip4)
	defer conn.Close()

	node := func(unschedulable string) {
		c.apply.All(`{apiVersion: v1, kind: Node, metadata: {name: node1, labels: {rack: "7"}}, spec: {unschedulable: ` + unschedulable + `}}`)
	}
	node("true")
	c.untilHops(netip.PrefixFrom(vip4, 32))
	s := c.untilStatus("the reason", func(s *api.Status) bool {
		return len(s.Announce.Addresses) > 0 && strings.Contains(s.Announce.Addresses[0].Detail, "node1 is cordoned")
	})
	if s.Discovery.NodeNotEligible != "" {
		t.Errorf("other load balancers avoid the node, too: %s", s.Discovery.NodeNotEligible)
	}
	node("false")
	c.untilHops(netip.PrefixFrom(vip4, 32), here)
}
