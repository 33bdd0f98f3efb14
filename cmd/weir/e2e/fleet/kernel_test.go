package fleet

import (
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/weirlb/weir/perf/netlab/patience"
	"github.com/weirlb/weir/perf/netlab/weirtest"
)

const kernelTable = 177

// announcedRoutes are the prefixes in the table of the first node.
func (b *bed) announcedRoutes() (out []string) {
	b.t.Helper()
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		list, err := b.Nodes[0].Netlink().RouteListFiltered(family, &netlink.Route{Table: kernelTable}, netlink.RT_FILTER_TABLE)
		must(b.t, err)
		for _, r := range list {
			out = append(out, r.Dst.String())
		}
	}
	return out
}

func (b *bed) untilRoutes(want ...string) {
	b.t.Helper()
	for deadline := time.Now().Add(patience.For(20 * time.Second)); !slices.Equal(b.announcedRoutes(), want); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			b.t.Fatalf("routes %v, want %v", b.announcedRoutes(), want)
		}
	}
}

// The routes of speaker kernel stay after a kill until a cleanup, and leave before a stop.
func TestWireKernelRoutesFollowTheProcess(t *testing.T) {
	b := newBedOf(t, 1, "{notReadySeconds: 0, timeoutSeconds: 0}", "speaker: kernel")
	both := []string{vip4.String() + "/32", vip6.String() + "/128"}
	b.untilRoutes(both...)

	n := b.nodes[0]
	config := filepath.Join(n.dir, "config.yaml")
	must(t, n.Kill())
	b.untilRoutes(both...)
	cleanup, err := b.Nodes[0].StartDaemon(exec.Command(weirtest.Binary(t), "cleanup", "--config", config), filepath.Join(n.dir, "log3"))
	must(t, err)
	if <-cleanup.Done(); cleanup.ExitCode() != 0 {
		t.Errorf("cleanup: %s", cleanup.LogTail(20))
	}
	b.untilRoutes()

	b.start(0, "{notReadySeconds: 0, timeoutSeconds: 0}")
	b.untilRoutes(both...)
	must(t, b.nodes[1].Signal(syscall.SIGTERM))
	b.untilRoutes()
	must(t, b.nodes[1].Err())
}
