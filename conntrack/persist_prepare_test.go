package conntrack

import (
	"bytes"
	"context"
	"errors"
	"os"
	"testing"
)

func prepared(t *testing.T, cfg Config) *Prepared {
	t.Helper()
	p, err := Prepare(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	return p
}

// The next process prepares the table while the last one changes it, and goes on with all that
// the last one has left.
func TestATableIsPreparedBesideTheLastProcess(t *testing.T) {
	memories(t, func(t *testing.T, cfg Config) {
		fillAndClose(t, cfg, 300)
		last := open(t, cfg)
		p := prepared(t, cfg)
		if p == nil {
			t.Fatal("nothing was prepared")
		}
		w := last.Worker(0)
		w.Online()
		for i := 300; i < 700; i++ {
			mustCreate(t, w, natFlow(i))
		}
		last.Delete(last.lookup(natFlow(7).Client))
		w.Offline()
		want := snapshot(last)
		if err := last.Close(); err != nil {
			t.Fatal(err)
		}
		cfg.Prepared = p
		next := open(t, cfg)
		checkSurvived(t, next, want)
		if len(want) != 699 {
			t.Errorf("%d connections", len(want))
		}
		if v, err := next.Verify(t.Context()); err != nil || len(v.Faults) > 0 {
			t.Errorf("%v %v", v, err)
		}
		if err := next.Close(); err != nil {
			t.Error(err)
		}
	})
}

func TestPreparationChangesNothing(t *testing.T) {
	cfg := fileConfig(t)
	fillAndClose(t, cfg, 300)
	before, err := os.ReadFile(cfg.Path)
	if err != nil {
		t.Fatal(err)
	}
	if err := prepared(t, cfg).Close(); err != nil {
		t.Error(err)
	}
	if now, err := os.ReadFile(cfg.Path); err != nil || !bytes.Equal(before, now) {
		t.Errorf("the file is another: %v", err)
	}
}

// What the last process has put in the place of the prepared table counts.
func TestAPreparedTableThatWasReplacedIsNotUsed(t *testing.T) {
	cfg := fileConfig(t)
	fillAndClose(t, cfg, 300)
	p := prepared(t, cfg)
	if err := os.Remove(cfg.Path); err != nil {
		t.Fatal(err)
	}
	want := fillAndClose(t, cfg, 20)
	cfg.Prepared = p
	next := open(t, cfg)
	defer next.Close()
	checkSurvived(t, next, want)
}

func TestOnlyATableToGoOnWithIsPrepared(t *testing.T) {
	cfg := fileConfig(t)
	if p, err := Prepare(cfg); err == nil || p != nil {
		t.Errorf("without a file: %v %v", p, err)
	}
	if p := prepared(t, Config{MaxFlows: 1000}); p != nil {
		t.Error("without a path")
	}
	fillAndClose(t, cfg, 20)
	other := cfg
	other.MaxFlows *= 2
	if p := prepared(t, other); p != nil {
		t.Error("for another number of connections")
	}
	if err := os.WriteFile(cfg.Path, []byte("noise"), 0o600); err != nil {
		t.Fatal(err)
	}
	if p := prepared(t, cfg); p != nil {
		t.Error("noise")
	}
}

// A process that leaves lets the next one have the table at once.
func TestLeaveEndsTheLock(t *testing.T) {
	memories(t, func(t *testing.T, cfg Config) {
		want := fillAndClose(t, cfg, 20)
		last := open(t, cfg)
		if _, err := Open(cfg); !errors.Is(err, ErrInUse) {
			t.Fatalf("beside the last process: %v", err)
		}
		if err := last.Leave(); err != nil {
			t.Fatal(err)
		}
		next := open(t, cfg)
		defer next.Close()
		checkSurvived(t, next, want)
		if err := last.Close(); err != nil {
			t.Error(err)
		}
	})
}

// succeeded opens a table, leaves it, and opens it as the next process. refs are its connections, and
// before is its memory.
func succeeded(t *testing.T, cfg Config) (last, next *Table, refs []Ref, before []byte) {
	t.Helper()
	last = open(t, cfg)
	last.Range(func(r Ref) bool { refs = append(refs, r); return true })
	if err := last.Leave(); err != nil {
		t.Fatal(err)
	}
	next = open(t, cfg)
	return last, next, refs, bytes.Clone(leftBy(t, cfg))
}

// A part of a process that has left, and that was forgotten, does not change the table of the next
// process.
func TestAProcessThatHasLeftChangesNothing(t *testing.T) {
	memories(t, func(t *testing.T, cfg Config) {
		want := fillAndClose(t, cfg, 20)
		last, next, refs, before := succeeded(t, cfg)
		defer next.Close()

		if last.Delete(refs[0]) || last.Sweep(last.Tick()+1<<20, 20) != 0 {
			t.Error("a connection ended")
		}
		last.Range(func(Ref) bool { t.Error("a connection in the table"); return true })
		ended, end := context.WithCancel(t.Context())
		end()
		last.Run(ended)
		if !bytes.Equal(before, leftBy(t, cfg)) {
			t.Error("the table was changed")
		}
		checkSurvived(t, next, want)
	})
}
