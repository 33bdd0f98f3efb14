package memory

import (
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// HugePage is the size of a huge page.
const HugePage = 2 << 20

// Areas are mappings that end together.
type Areas struct{ areas []area }

// area is a reservation of address space.
type area struct {
	base unsafe.Pointer
	size uintptr
}

// Map maps size bytes of fd, or of anonymous memory if fd is -1. The address is a
// multiple of a huge page, and it asks for huge pages.
func (m *Areas) Map(fd int, size int64) ([]byte, error) {
	whole := uintptr(size) + HugePage
	base, err := unix.MmapPtr(-1, 0, nil, whole, unix.PROT_NONE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return nil, fmt.Errorf("reserve %d bytes of address space: %w", whole, err)
	}
	m.areas = append(m.areas, area{base, whole})
	at := unsafe.Add(base, (HugePage-uintptr(base)%HugePage)%HugePage)
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

// MapPrivate maps size bytes of the process's own, and touches all of them.
func (m *Areas) MapPrivate(size int64) ([]byte, error) {
	b, err := m.Map(-1, size)
	if err != nil {
		return nil, err
	}
	if err := Populate(b); err != nil {
		return nil, fmt.Errorf("populate %d MB: %w", size>>20, err)
	}
	return b, nil
}

// Populate touches all of b for writing now, not while packets flow. Kernels before
// 5.14 cannot; there the first touches fault.
func Populate(b []byte) error {
	err := unix.Madvise(b, unix.MADV_POPULATE_WRITE)
	if errors.Is(err, unix.EINVAL) {
		return nil
	}
	return err
}

// PopulateHuge gives a fresh file huge pages, whatever the tmpfs's own setting, where
// the kernel can (6.1): of each it touches the first small page and has it collapsed with
// the 511 holes behind it. That takes less time than to touch all the
// small ones. Where a huge page cannot be had the holes stay, for Populate.
func PopulateHuge(b []byte) {
	page := unix.Getpagesize()
	for off := 0; off+HugePage <= len(b); off += HugePage {
		if Populate(b[off:off+page]) != nil { // a full tmpfs: Populate says so
			return
		}
		if errors.Is(unix.Madvise(b[off:off+HugePage], unix.MADV_COLLAPSE), unix.EINVAL) {
			return
		}
	}
}

// Allocate reserves all blocks of the file now, so that a write never faults later.
func Allocate(f *os.File, size int64) error {
	err := unix.Fallocate(int(f.Fd()), 0, 0, size)
	for errors.Is(err, unix.EINTR) {
		err = unix.Fallocate(int(f.Fd()), 0, 0, size)
	}
	if errors.Is(err, unix.EOPNOTSUPP) {
		err = writeZeros(f, size)
	}
	return err
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

// Unmap unmaps everything.
func (m *Areas) Unmap() error {
	var errs []error
	for _, a := range m.areas {
		if err := unix.MunmapPtr(a.base, a.size); err != nil {
			errs = append(errs, fmt.Errorf("unmap: %w", err))
		}
	}
	m.areas = nil
	return errors.Join(errs...)
}
