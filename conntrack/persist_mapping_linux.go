package conntrack

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/conntrack/memory"
)

// mapping is the memory of a table: the file, shared, and an area of the
// process's own.
type mapping struct {
	memory.Areas
	file     *os.File
	shared   []byte
	index    []byte
	links    []byte
	fileSize int64
	borrowed bool // shared and index are Config.Memory's
}

// collapseStep is how much collapse asks for at once, for Run to end soon.
const collapseStep = 16 * memory.HugePage

// collapse brings pages that PopulateHuge could not, or an earlier process did not, into
// huge pages: look-ups in a million flows take a quarter less time. It copies the
// small ones, at about 3 s per GB, so it is not done before packets flow, and is done
// once: a restored file has them.
func (t *Table) collapse(ctx context.Context) {
	if t.mem.borrowed {
		return
	}
	for off := 0; off < len(t.mem.shared) && ctx.Err() == nil; off += collapseStep {
		if !t.collapseAt(off) {
			return
		}
	}
}

func (t *Table) collapseAt(off int) bool {
	t.sweepMu.Lock() // Close waits
	defer t.sweepMu.Unlock()
	if t.closed {
		return false
	}
	b := t.mem.shared[off:min(off+collapseStep, len(t.mem.shared))]
	return !errors.Is(unix.Madvise(b, unix.MADV_COLLAPSE), unix.EINVAL)
}

// close unmaps everything and closes the file, which ends the lock on it.
func (m *mapping) close() error {
	return errors.Join(m.Unmap(), m.unlock())
}

// unlock ends the lock on the file, which a mapping would keep, and closes it.
func (m *mapping) unlock() error {
	if m.file == nil {
		return nil
	}
	err := errors.Join(unix.Flock(int(m.file.Fd()), unix.LOCK_UN), m.file.Close())
	m.file = nil
	return err
}

// monotonic returns CLOCK_MONOTONIC in nanoseconds, which processes share.
func monotonic() (int64, error) {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		return 0, fmt.Errorf("read CLOCK_MONOTONIC: %w", err)
	}
	return ts.Nano(), nil
}

// bothClocks reads CLOCK_MONOTONIC, by read, and Go's clock at the same time. The program in
// the kernel counts ticks by the first, and [Table.Tick] by the second: a pause between the
// readings would set them apart for good. So the readings closest to each other count.
func bothClocks(read func() (int64, error)) (now int64, base time.Time, err error) {
	const attempts, near = 20, 100 * time.Microsecond
	least := time.Duration(math.MaxInt64)
	for range attempts {
		before := time.Now()
		n, err := read()
		if err != nil {
			return 0, base, err
		}
		apart := time.Since(before)
		if apart < least {
			least, now, base = apart, n, before
		}
		if apart < near {
			break
		}
	}
	return now, base, nil
}

// lock takes the file for this process. The lock ends with the process, however
// it ends.
func lock(f *os.File) error {
	err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return ErrInUse
	}
	return err
}
