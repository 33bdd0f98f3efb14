package lastknown

import (
	"errors"
	"io/fs"
	"path/filepath"
	"testing"
)

// A process that starts beside one that saves, leaves the files of that alone.
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
