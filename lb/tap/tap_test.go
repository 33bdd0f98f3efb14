package tap

import (
	"encoding/binary"
	"sync"
	"testing"
)

// Readers see each record whole and in order, while workers write; what has no room is
// counted.
func TestRecordsAreWholeAndInOrder(t *testing.T) {
	const workers, each = 3, 20_000
	tap, err := New(Config{SnapLen: 16, Bytes: 64 * (32 + recordBytes), Workers: workers})
	if err != nil {
		t.Fatal(err)
	}
	var writers sync.WaitGroup
	for w := range workers {
		writers.Go(func() {
			for i := uint64(1); i <= each; i++ {
				r := tap.Begin(w, 0)
				if r == nil {
					continue
				}
				r.ID, r.Time, r.In = i, int64(i), int32(w)
				tap.Copy(&r.InData, binary.BigEndian.AppendUint64(make([]byte, 0, 8), i))
				tap.Commit(w)
			}
		})
	}
	done := make(chan struct{})
	go func() { writers.Wait(); close(done) }()
	var last [workers]uint64
	read, over := uint64(0), false
	for !over {
		select {
		case <-done:
			over = true
		default:
		}
		tap.Read(func(r *Record) bool {
			read++
			if r.ID <= last[r.In] || len(r.InData) != 8 || binary.BigEndian.Uint64(r.InData) != r.ID || len(r.OutData) != 0 {
				t.Fatalf("worker %d: record %d with %x after %d", r.In, r.ID, r.InData, last[r.In])
			}
			last[r.In] = r.ID
			return true
		})
	}
	if read+tap.Lost() != workers*each {
		t.Errorf("%d read, %d lost, want %d together", read, tap.Lost(), workers*each)
	}
}

func TestARateIsKept(t *testing.T) {
	tap, err := New(Config{SnapLen: 16, Bytes: 1 << 20, Workers: 1, PerTick: 3})
	if err != nil {
		t.Fatal(err)
	}
	got := 0
	for tick := range uint32(4) {
		for range 10 {
			if tap.Begin(0, tick) != nil {
				got++
				tap.Commit(0)
			}
		}
	}
	if got != 12 || tap.Skipped() != 28 || tap.Lost() != 0 {
		t.Errorf("%d taken, %d skipped, %d lost", got, tap.Skipped(), tap.Lost())
	}
}

func TestATapOfLittleMemoryIsRefused(t *testing.T) {
	if _, err := New(Config{SnapLen: 65535, Bytes: 1 << 20, Workers: 1}); err == nil {
		t.Error("no error")
	}
}
