package lastknown

import (
	"context"
	"log/slog"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirlb/weir/discovery/kube/cluster"
)

// A large state that changes all the time is written as often as the budget allows, and not
// less often.
func TestKeeperStaysWithinItsBudget(t *testing.T) {
	path := filepath.Join(t.TempDir(), File)
	synctest.Test(t, func(t *testing.T) {
		k := NewKeeper(path, "cluster", objects, slog.New(slog.DiscardHandler))
		saves := 0
		k.Objects = func() *cluster.Objects { saves++; return objects() }
		if size, good := k.File(); size != 0 || !good.IsZero() {
			t.Errorf("before a save: %d bytes, good at %v", size, good)
		}
		k.save()
		size, good := k.File()
		if size == 0 || !good.Equal(time.Now()) {
			t.Fatalf("after a save: %d bytes, good at %v", size, good)
		}
		const allowed = 12 // a day
		k.Budget = allowed * size
		saves = 0
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan bool)
		go func() { k.Run(ctx); close(done) }()
		const days = 5
		for range days * 24 * 60 {
			k.Changed()
			time.Sleep(time.Minute)
		}
		synctest.Wait()
		if saves < days*(allowed-1) || saves > days*allowed+1 {
			t.Errorf("%d saves in %d days, want %d a day", saves, days, allowed)
		}
		cancel()
		<-done
	})
}
