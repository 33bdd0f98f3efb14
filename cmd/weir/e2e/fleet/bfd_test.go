package fleet

import (
	"strings"
	"testing"
	"time"

	"github.com/weirlb/weir/perf/netlab/patience"
)

// A running Weir, without the privileges of its start, has BFD with a router, and shows it.
func TestWireBFDIsUp(t *testing.T) {
	b := newBedOf(t, 1, "{notReadySeconds: 0, timeoutSeconds: 0}", strings.ReplaceAll(bgpSessions(), "}", ", "+bfd+" {}}"))
	b.until(0)
	deadline := time.Now().Add(patience.For(40 * time.Second))
	for {
		out := b.weir("status", "--announce", "-o", "json")
		if strings.Count(out, `"bfd": "up"`) == 2 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("status --announce: %s", out)
		}
		time.Sleep(100 * time.Millisecond)
	}
}
