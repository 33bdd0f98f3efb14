package lastknown

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirlb/weir/discovery/kube/cluster"
)

// A process that starts beside one that saves, as in a handover, leaves the files of that alone.
func TestLoadDoesNotDisturbASave(t *testing.T) {
	path := filepath.Join(t.TempDir(), File)
	done := make(chan error, 1)
	go func() {
		var err error
		for range 60 {
			err = errors.Join(err, Save(path, "cluster", at, objects()), writeSeen(path, []byte{1}, at))
		}
		done <- err
	}()
	for {
		select {
		case err := <-done:
			if err != nil {
				t.Fatal(err)
			}
			return
		default:
			if _, _, err := Load(path, "cluster"); err != nil && !errors.Is(err, fs.ErrNotExist) {
				t.Fatal(err)
			}
		}
	}
}

// A process that is about to be followed saves what it has not saved yet, and nothing twice.
func TestKeeperSavesAtRequest(t *testing.T) {
	k := newKeeper(t, time.Hour)
	defer k.run(t)()
	k.set(objects())
	k.Changed()
	k.Flush(t.Context())
	if got, _, err := Load(k.Path, "cluster"); err != nil || got.Len() != objects().Len() {
		t.Errorf("%v, %v", got, err)
	}
	saved := k.Saved()
	k.Flush(t.Context())
	if !k.Saved().Equal(saved) {
		t.Error("it was saved again")
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	newKeeper(t, time.Hour).Flush(ended) // nobody saves
}

// A process that asks for handovers over and over has the state written as often as the budget allows,
// however often it changes.
func TestKeeperSavesAtRequestWithinItsBudget(t *testing.T) {
	path := filepath.Join(t.TempDir(), File)
	synctest.Test(t, func(t *testing.T) {
		k := NewKeeper(path, "cluster", objects, slog.New(slog.DiscardHandler))
		saves := 0
		k.Objects = func() *cluster.Objects { saves++; return objects() }
		k.save()
		size, _ := k.File()
		const allowed = 12 // a day
		k.Budget = allowed * size
		k.Delay, k.Intervals = 48*time.Hour, nil
		saves = 0
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan bool)
		go func() { k.Run(ctx); close(done) }()
		for range 24 * 60 {
			k.Changed()
			synctest.Wait()
			k.Flush(t.Context())
			time.Sleep(time.Minute)
		}
		if saves < allowed-1 || saves > allowed+1 {
			t.Errorf("%d saves in a day, want %d", saves, allowed)
		}
		cancel()
		<-done
	})
}

// A request that cannot be obeyed leaves the file older than the state: no later time counts as
// that at which the file was the cluster's state.
func TestAFailedSaveAtRequestConfirmsNothing(t *testing.T) {
	k := newKeeper(t, time.Hour)
	k.set(objects())
	k.Changed()
	if due := k.saveAtRequest(nil); due != nil || k.Err() != nil {
		t.Fatalf("not saved: %v", k.Err())
	}
	if err := errors.Join(os.Remove(k.Path), os.MkdirAll(filepath.Join(k.Path, "in the way"), 0o700)); err != nil {
		t.Fatal(err)
	}
	k.Budget = 0
	k.Changed()
	if due := k.saveAtRequest(nil); due == nil || k.Err() == nil {
		t.Error("it is saved, or not tried again")
	}
	failed := time.Now()
	k.confirm()
	if _, good := k.File(); good.After(failed) {
		t.Errorf("a state that is not in the file counts as known %v later", good.Sub(failed))
	}
}
