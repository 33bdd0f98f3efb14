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

// The routes of speaker kernel stay while another process takes over, leave before a stop, and
// after a kill until a cleanup.
func TestWireKernelRoutesFollowTheProcess(t *testing.T) {
	b := newBedOf(t, 1, "{notReadySeconds: 0, timeoutSeconds: 0}", "speaker: kernel")
	both := []string{vip4.String() + "/32", vip6.String() + "/128"}
	b.untilRoutes(both...)

	changes, done := make(chan netlink.RouteUpdate, 1000), make(chan struct{})
	must(t, b.Nodes[0].Do(func() error { return netlink.RouteSubscribe(changes, done) }))
	n := b.nodes[0]
	config := filepath.Join(n.dir, "config.yaml")
	last := n.Daemon
	next, err := b.Nodes[0].StartDaemon(exec.Command(weirtest.Binary(t), "run", "--handover", "--config", config), filepath.Join(n.dir, "log2"))
	must(t, err)
	n.Daemon = next
	select {
	case <-last.Done():
		must(t, last.Err())
	case <-time.After(patience.For(30 * time.Second)):
		t.Fatalf("no handover: %s", next.LogTail(20))
	}
	for deadline := time.Now().Add(patience.For(20 * time.Second)); len(b.announce(0).Routes) != 2; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("the next process announces %+v", b.announce(0))
		}
	}
	close(done)
	for c := range changes {
		if c.Type == syscall.RTM_DELROUTE && c.Table == kernelTable {
			t.Errorf("route %v was removed in the handover", c.Dst)
		}
	}
	b.untilRoutes(both...)

	must(t, next.Kill())
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
