package fleet

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/weirlb/weir/perf/netlab/patience"
	"github.com/weirlb/weir/perf/netlab/weirtest"
)

// The session with a router ends with the process, and the next process of a handover announces
// as soon as it has a session of its own: addresses do not settle again.
func TestWireNextProcessAnnouncesAtOnce(t *testing.T) {
	b := newBed(t, 1, "{notReadySeconds: 0, timeoutSeconds: 0}")
	b.until(0)
	n := b.nodes[0]
	text, err := os.ReadFile(filepath.Join(n.dir, "config.yaml"))
	must(t, err)
	config := filepath.Join(n.dir, "next.yaml")
	must(t, os.WriteFile(config, bytes.Replace(text, []byte("settleSeconds: 0"), []byte("settleSeconds: 60"), 1), 0o644))
	last := n.Daemon
	next, err := b.Nodes[0].StartDaemon(exec.Command(weirtest.Binary(t), "run", "--handover", "--config", config), filepath.Join(n.dir, "log2"))
	must(t, err)
	n.Daemon = next
	b.until()
	withdrawn := time.Now()
	select {
	case <-last.Done():
		must(t, last.Err())
	case <-time.After(patience.For(30 * time.Second)):
		t.Fatalf("no handover: %s", next.LogTail(20))
	}
	for deadline := time.Now().Add(patience.For(30 * time.Second)); len(b.announce(0).Routes) != 2; time.Sleep(5 * time.Millisecond) {
		for _, a := range b.announce(0).Addresses {
			if a.Reason == "settling" {
				t.Fatalf("%+v", a)
			}
		}
		if time.Now().After(deadline) {
			t.Fatalf("%+v", b.announce(0))
		}
	}
	b.until(0)
	t.Logf("without routes for %v", time.Since(withdrawn))
	b.connectAll()
}
