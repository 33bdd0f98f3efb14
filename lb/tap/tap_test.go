package tap

import (
	"encoding/binary"
	"fmt"
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
				r := tap.Begin(w, 0, int32(w), -1)
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
	frames := uint64(0)
	for port := range int32(MaxPorts) {
		received, sent := tap.LostFrames(port)
		frames += received
		if port >= workers && received > 0 || sent > 0 {
			t.Errorf("port %d lost %d, %d frames", port, received, sent)
		}
	}
	if frames != tap.Lost() {
		t.Errorf("%d frames lost, and %d records with a frame each", frames, tap.Lost())
	}
}

// A worker writes as many records as a second may have, and no second has more: also with a rate
// below that of the clock, and after a quiet time.
func TestARateIsKept(t *testing.T) {
	const ticks, seconds, perTick = 16, 20, 200
	for _, rate := range []uint32{1, 3, 15, 16, 20, 100, 1_000_000} {
		t.Run(fmt.Sprint(rate), func(t *testing.T) {
			tap, err := New(Config{SnapLen: 16, Bytes: perTick * 512, Workers: 1, PerSecond: rate, TicksPerSecond: ticks})
			if err != nil {
				t.Fatal(err)
			}
			const quiet = 100
			var taken []int // by tick
			for tick := range uint32(ticks * seconds) {
				if tick >= quiet && tick < quiet+5*ticks {
					taken = append(taken, 0)
					continue
				}
				n := 0
				for range perTick {
					if tap.Begin(0, tick, 0, 0) != nil {
						n++
						tap.Commit(0)
					}
				}
				taken = append(taken, n)
				tap.Read(func(*Record) bool { return true })
			}
			all, most := 0, 0
			for i, n := range taken {
				all += n
				second := 0
				for _, n := range taken[i:min(i+ticks, len(taken))] {
					second += n
				}
				most = max(most, second)
			}
			want := min(int(rate), perTick*ticks)
			if most != want || all < want*(seconds-5-1) || all > want*(seconds-5)+1 {
				t.Errorf("%d records in %d s, %d in a second, want %d a second", all, seconds-5, most, want)
			}
			if tap.Lost() != 0 || int(tap.Skipped())+all != perTick*ticks*(seconds-5) {
				t.Errorf("%d taken, %d skipped, %d lost", all, tap.Skipped(), tap.Lost())
			}
		})
	}
}

func TestATapOfLittleMemoryIsRefused(t *testing.T) {
	if _, err := New(Config{SnapLen: 65535, Bytes: 1 << 20, Workers: 1}); err == nil {
		t.Error("no error")
	}
}
