package xsk

import (
	"bytes"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

func TestUmemIsCutIntoFrames(t *testing.T) {
	a, err := NewUmem(1000, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	if a.Frames() != 1000 || a.FrameSize() != FrameSize || len(a.Bytes()) != 1000*FrameSize {
		t.Errorf("%d frames of %d, %d bytes", a.Frames(), a.FrameSize(), len(a.Bytes()))
	}
	addr := a.Addr(999) + Headroom + 14
	if a.Base(addr) != a.Addr(999) {
		t.Errorf("base of %#x is %#x", addr, a.Base(addr))
	}
	frame, data := a.Frame(addr), a.Data(Desc{Addr: addr, Len: 40})
	if len(frame) != FrameSize || cap(frame) != FrameSize {
		t.Errorf("frame of %d, capacity %d", len(frame), cap(frame))
	}
	if len(data) != 40 || cap(data) != FrameSize-Headroom-14 {
		t.Errorf("packet of %d, capacity %d", len(data), cap(data))
	}
	data[0] = 7
	if frame[Headroom+14] != 7 {
		t.Error("the packet does not lie in its frame")
	}
}

// A successor maps the same packets by the file descriptor, whose size nobody
// can change.
func TestUmemIsAMemoryFileForASuccessor(t *testing.T) {
	a, err := NewUmem(8, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	copy(a.Frame(a.Addr(3)), "written by the first")
	fd, err := unix.FcntlInt(uintptr(a.FD()), unix.F_DUPFD_CLOEXEC, 0) // as SCM_RIGHTS does
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.Ftruncate(fd, 0); err == nil {
		t.Error("the file can be cut short under its users")
	}
	mem, err := unix.Mmap(fd, 0, len(a.Bytes()), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(mem)
	if got := mem[3*FrameSize:]; !bytes.HasPrefix(got, []byte("written by the first")) {
		t.Errorf("the successor sees %q", got[:20])
	}
	copy(mem, "by the second")
	if !bytes.HasPrefix(a.Bytes(), []byte("by the second")) {
		t.Error("the first does not see what the second writes")
	}
}

func TestUmemRefusesWhatTheKernelWould(t *testing.T) {
	for _, c := range []struct{ frames, size int }{
		{0, FrameSize}, {-1, FrameSize}, {1, 1024}, {1, 3000}, {1, 1 << 20},
	} {
		if a, err := NewUmem(c.frames, c.size); err == nil {
			a.Close()
			t.Errorf("%d frames of %d: accepted", c.frames, c.size)
		}
	}
}

func TestUmemCanBeClosedTwice(t *testing.T) {
	a, err := NewUmem(1, 0)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := a.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := Open(a, Config{IfIndex: 1}); err == nil {
		t.Error("a socket opened on a closed umem")
	}
}

// TestMetadataLayout checks struct xsk_tx_metadata byte by byte: flags, then
// csum_start and csum_offset, then padding and launch_time.
func TestMetadataLayout(t *testing.T) {
	a, err := NewUmem(1, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	for i := range a.Bytes() {
		a.Bytes()[i] = 0xee
	}
	d := Desc{Addr: Headroom, Len: 60, Options: Continued}
	if !a.SetChecksum(&d, 34, 16) {
		t.Fatal("refused")
	}
	want := []byte{2, 0, 0, 0, 0, 0, 0, 0, 34, 0, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
	if native := [2]byte{1, 0}; *(*uint16)(unsafe.Pointer(&native)) != 1 {
		t.Skip("skipped: the bytes above are little-endian")
	}
	if got := a.Bytes()[Headroom-MetadataLen : Headroom]; !bytes.Equal(got, want) {
		t.Errorf("metadata % x, want % x", got, want)
	}
	if a.Bytes()[Headroom-MetadataLen-1] != 0xee || a.Bytes()[Headroom] != 0xee {
		t.Error("written outside of the metadata")
	}
	if d.Options != Continued|WithMetadata {
		t.Errorf("options %#x", d.Options)
	}
	for _, length := range []uint32{0, 34, 51} {
		short := Desc{Addr: Headroom, Len: length}
		if a.SetChecksum(&short, 34, 16) || short.Options != 0 {
			t.Errorf("a checksum beyond a packet of %d bytes was accepted", length)
		}
	}
}
