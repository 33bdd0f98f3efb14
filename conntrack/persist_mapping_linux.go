package conntrack

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// mapping is the memory of a table: the file, shared, and an area of the
// process's own.
type mapping struct {
	file     *os.File
	areas    []area
	shared   []byte
	index    []byte
	links    []byte
	fileSize int64
	borrowed bool // shared and index are Config.Memory's
}

// area is a reservation of address space.
type area struct {
	base unsafe.Pointer
	size uintptr
}

// mapAligned maps size bytes of fd, or of anonymous memory if fd is -1. The address is a
// multiple of a huge page, and it asks for huge pages.
func (m *mapping) mapAligned(fd int, size int64) ([]byte, error) {
	whole := uintptr(size) + hugePage
	base, err := unix.MmapPtr(-1, 0, nil, whole, unix.PROT_NONE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return nil, fmt.Errorf("reserve %d bytes of address space: %w", whole, err)
	}
	m.areas = append(m.areas, area{base, whole})
	at := unsafe.Add(base, (hugePage-uintptr(base)%hugePage)%hugePage)
	flags := unix.MAP_FIXED | unix.MAP_SHARED
	if fd < 0 {
		flags = unix.MAP_FIXED | unix.MAP_PRIVATE | unix.MAP_ANONYMOUS
	}
	if _, err := unix.MmapPtr(fd, 0, at, uintptr(size), unix.PROT_READ|unix.PROT_WRITE, flags); err != nil {
		return nil, fmt.Errorf("map %d bytes: %w", size, err)
	}
	b := unsafe.Slice((*byte)(at), size)
	_ = unix.Madvise(b, unix.MADV_HUGEPAGE) // a hint: small pages work too
	return b, nil
}

// mapPrivate maps size bytes of the process's own, and touches all of them.
func (m *mapping) mapPrivate(size int64) ([]byte, error) {
	b, err := m.mapAligned(-1, size)
	if err != nil {
		return nil, err
	}
	if err := populate(b); err != nil {
		return nil, fmt.Errorf("populate %d MB: %w", size>>20, err)
	}
	return b, nil
}

// populate touches all of b for writing now, not while packets flow. Kernels before
// 5.14 cannot; there the first touches fault.
func populate(b []byte) error {
	err := unix.Madvise(b, unix.MADV_POPULATE_WRITE)
	if errors.Is(err, unix.EINVAL) {
		return nil
	}
	return err
}

// populateHuge gives a fresh file huge pages, whatever the tmpfs's own setting, where
// the kernel can (6.1): of each it touches the first small page and has it collapsed with
// the 511 holes behind it. That takes less time than to touch all the
// small ones. Where a huge page cannot be had the holes stay, for populate.
func populateHuge(b []byte) {
	page := unix.Getpagesize()
	for off := 0; off+hugePage <= len(b); off += hugePage {
		if populate(b[off:off+page]) != nil { // a full tmpfs: populate says so
			return
		}
		if errors.Is(unix.Madvise(b[off:off+hugePage], unix.MADV_COLLAPSE), unix.EINVAL) {
			return
		}
	}
}

// allocate reserves all blocks of the file now, so that a write never faults later.
func allocate(f *os.File, size int64) error {
	err := unix.Fallocate(int(f.Fd()), 0, 0, size)
	for errors.Is(err, unix.EINTR) {
		err = unix.Fallocate(int(f.Fd()), 0, 0, size)
	}
	if errors.Is(err, unix.EOPNOTSUPP) {
		err = writeZeros(f, size)
	}
	return err
}

// collapseStep is how much collapse asks for at once, for Run to end soon.
const collapseStep = 16 * hugePage

// collapse brings pages that populateHuge could not, or an earlier process did not, into
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

// writeZeros is fallocate for file systems that lack it.
func writeZeros(f *os.File, size int64) error {
	zeros := make([]byte, 1<<20)
	for off := int64(0); off < size; off += int64(len(zeros)) {
		if _, err := f.WriteAt(zeros[:min(int64(len(zeros)), size-off)], off); err != nil {
			return err
		}
	}
	return nil
}

// unmap unmaps everything.
func (m *mapping) unmap() error {
	var errs []error
	for _, a := range m.areas {
		if err := unix.MunmapPtr(a.base, a.size); err != nil {
			errs = append(errs, fmt.Errorf("unmap: %w", err))
		}
	}
	m.areas = nil
	return errors.Join(errs...)
}

// close unmaps everything and closes the file, which ends the lock on it.
func (m *mapping) close() error {
	return errors.Join(m.unmap(), m.unlock())
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
