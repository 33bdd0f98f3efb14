package lastknown

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"
	"testing"
	"time"
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
