package lan

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weirlb/weir/perf/netlab/patience"
)

// MetalLB's objects say which addresses of which Services are announced on the link, and by which nodes.
func TestWireL2Advertisement(t *testing.T) {
	b := newBed(t, 2, 1)
	b.objects = filepath.Join(b.Dir(), "pools.yaml")
	must(t, os.WriteFile(b.objects, []byte(fmt.Sprintf(`apiVersion: metallb.io/v1beta1
kind: IPAddressPool
metadata: {namespace: metallb-system, name: lan}
spec: {addresses: [%s/32]}
---
apiVersion: metallb.io/v1beta1
kind: L2Advertisement
metadata: {namespace: metallb-system, name: lan}
spec: {ipAddressPools: [lan], interfaces: [eth0], nodeSelectors: [{matchLabels: {kubernetes.io/hostname: node2}}], serviceSelectors: [{matchLabels: {app: web}}]}
`, vip4(0))), 0o644))
	for i := range b.nodes {
		b.start(i)
	}
	b.until("the selected node is the owner", func() bool { l := b.owners(vip4(0)); return len(l) == 1 && l[0] == 1 })
	must(t, b.exchange(vip4(0), patience.For(3*time.Second)))
	notAllowed := func(i int, a netip.Addr) func() bool {
		return func() bool {
			x := b.nodes[i].l2of(a)
			return x != nil && x.State == "ineligible" && strings.HasPrefix(x.Reason, "not-allowed")
		}
	}
	b.until("a node that is not selected says so", notAllowed(0, vip4(0)))
	b.until("an address of no pool is not announced", notAllowed(1, vip6(0)))
	label := func(value string) {
		file := filepath.Join(b.nodes[1].dir, "manifests", "web.yaml")
		must(t, os.WriteFile(file+".new", []byte(strings.Replace(b.manifest(), "app: web", "app: "+value, 1)), 0o644))
		must(t, os.Rename(file+".new", file))
	}
	label("other")
	b.until("the address of a Service that is not selected is given up", func() bool {
		x := b.nodes[1].l2of(vip4(0))
		return x != nil && x.State == "ineligible" && x.Reason == "not-allowed: no advertisement selects it"
	})
	label("web")
	b.until("the address is taken again", func() bool { return len(b.owners(vip4(0))) == 1 })
	must(t, b.exchange(vip4(0), patience.For(3*time.Second)))
}
